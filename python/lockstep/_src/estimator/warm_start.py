"""Estimators whose variables start with the values of another model."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from lockstep._src.engine import file_errors
from lockstep._src.saving import initial_tables
from lockstep._src.saving.latest import latest_checkpoint

_tf1 = tf.compat.v1


class WarmStartSettings(NamedTuple):
    """The variables that start with values of a checkpoint; follows `tf.estimator.WarmStartSettings`.

    Attributes:
      ckpt_to_initialize_from: a checkpoint, or the directory of one.
      vars_to_warm_start: a regular expression for names of trainable variables, a list of expressions for names of any
        variables, or a list of variables.
      var_name_to_vocab_info: not supported; must be None or empty.
      var_name_to_prev_var_name: from a variable's name to its name in the checkpoint, if the names differ.
    """

    ckpt_to_initialize_from: str
    vars_to_warm_start: str | Sequence[Any] = ".*"
    var_name_to_vocab_info: None = None
    var_name_to_prev_var_name: Mapping[str, str] | None = None


def checked(warm_start_from: Any) -> WarmStartSettings | None:
    """Returns an estimator's argument as settings; None stays None.

    Raises:
      ValueError: the argument is neither a path nor settings.
      NotImplementedError: the settings have vocabularies.
    """
    if warm_start_from is None or isinstance(warm_start_from, WarmStartSettings):
        settings = warm_start_from
    elif isinstance(warm_start_from, (str, os.PathLike)):
        settings = WarmStartSettings(os.fspath(warm_start_from))
    elif hasattr(warm_start_from, "ckpt_to_initialize_from"):  # TensorFlow's own
        settings = WarmStartSettings(*(getattr(warm_start_from, name) for name in WarmStartSettings._fields))
    else:
        raise ValueError(f"Estimator: warm_start_from is {warm_start_from!r}, wanted a path or WarmStartSettings")
    if settings is not None and settings.var_name_to_vocab_info:
        raise NotImplementedError(
            "WarmStartSettings: got var_name_to_vocab_info, wanted None: rows are not moved between vocabularies"
        )
    return settings


def initializer(settings: WarmStartSettings, init_fn: Callable[..., None] | None) -> Callable[..., None]:
    """Returns an `init_fn` for a scaffold that restores the settings' variables, then calls the given `init_fn`.

    Sharded tables are restored, too. Dynamic tables get the checkpoint's rows; slots and counts start at their initial
    values.

    Raises:
      ValueError: the checkpoint lacks a variable or table, has a table with other keys or row sizes, or no variable
        matches the settings.
    """
    path = latest_checkpoint(settings.ckpt_to_initialize_from) or settings.ckpt_to_initialize_from
    previous = settings.var_name_to_prev_var_name or {}
    variables = {previous.get(v.op.name, v.op.name): v for v in _variables(settings.vars_to_warm_start)}
    tables = {
        name: variables.pop(name)
        for name, variable in list(variables.items())
        if getattr(variable, "is_dynamic", False)
    }
    there = dict(tf.train.list_variables(path))
    missing = [name for name in variables if name not in there]
    if missing or not (variables or tables):
        what = f"lacks {', '.join(missing)}" if missing else f"no variable matches {settings.vars_to_warm_start!r}"
        raise ValueError(f"warm_start_from: {path!r}: {what}")
    saver = _tf1.train.Saver(variables) if variables else None
    begun: list[tf.Operation] = []
    if tables:
        checkpoint = initial_tables.Checkpoint(path, "warm_start_from")
        begun = [checkpoint.initial(table, name) for name, table in tables.items()]

    def initialize(session: Any) -> None:
        if saver is not None:
            saver.restore(session, path)
        with file_errors.while_restoring(path):
            session.run(begun)
        if init_fn is not None:
            init_fn(session)

    return initialize


def _variables(meant: str | Sequence[Any]) -> list[tf.Variable]:
    if isinstance(meant, str):
        return _tf1.get_collection(_tf1.GraphKeys.TRAINABLE_VARIABLES, meant)
    names = [one for one in meant if isinstance(one, str)]
    by_name = [v for name in names for v in _tf1.get_collection(_tf1.GraphKeys.GLOBAL_VARIABLES, name)]
    return [*dict.fromkeys([*by_name, *(one for one in meant if not isinstance(one, str))])]
