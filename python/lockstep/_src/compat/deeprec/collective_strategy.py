"""DeepRec's `CollectiveStrategy`: one face of the scope, the estimator and the export."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from lockstep._src.engine.context import context
from lockstep._src.engine.options import OptionValues
from lockstep._src.estimator.estimator import Estimator
from lockstep._src.saving import saved_models
from lockstep._src.saving.latest import latest_checkpoint
from lockstep._src.scope import embedding_scope, scope
from lockstep.launch.base.collective_backend import collective_backend

if TYPE_CHECKING:
    from typing_extensions import Unpack


class _Number(int):
    """An int that also stands for the function which returns it: DeepRec's manual writes it both ways."""

    def __call__(self) -> int:
        return int(self)


class CollectiveStrategy:
    """Synchronous training of a TensorFlow 1 program; after DeepRec's class of this name (Collective-Training.md).

    The variable COLLECTIVE_STRATEGY, 'hb' or 'sok', chooses between two engines in DeepRec. Here both are this one, and
    train alike: gradients are the mean over the workers, learning rates are as they are given, tables that are made in
    `embedding_scope` are sharded by rows. docs/deeprec.md lists what DeepRec does otherwise.

    Attributes:
      backend: 'hb' or 'sok', what the variable said; 'hb' where it is not set.

    Raises:
      ValueError: COLLECTIVE_STRATEGY says something else.
    """

    def __init__(self) -> None:
        self.backend = collective_backend(os.environ)

    def __repr__(self) -> str:
        return f"CollectiveStrategy(backend={self.backend!r}, rank={self.rank}, world_size={self.world_size})"

    def scope(self, *args: Any, **kwargs: Unpack[OptionValues]) -> contextlib.AbstractContextManager[None]:
        """The scope around the whole model: what is built inside trains on all workers.

        Args:
          *args: refused: DeepRec takes and drops them.
          **kwargs: options of the job (docs/hybridbackend.md, "Options"), for as long as the scope is open.

        Raises:
          TypeError: an argument without a name; a value of a wrong type.
          AttributeError: an option that does not exist.
          ValueError: a value that is out of range.
        """
        if args:
            raise TypeError(f"CollectiveStrategy.scope: got {args!r}, wanted options by name, such as seed=7")
        return scope(**kwargs)

    def embedding_scope(self, **kwargs: Unpack[OptionValues]) -> contextlib.AbstractContextManager[None]:
        """The scope around the tables: those that are made inside are sharded over the workers.

        Args:
          **kwargs: as `scope`'s.

        Raises:
          TypeError, AttributeError, ValueError: as `scope`.
        """
        return embedding_scope(**kwargs)

    @property
    def world_size(self) -> int:
        """Number of workers in the job; `strategy.world_size` and `strategy.world_size()` are the same number."""
        return _Number(context.world_size)

    @property
    def rank(self) -> int:
        """Index of this worker in the job, from 0; `strategy.rank` and `strategy.rank()` are the same number."""
        return _Number(context.rank)

    def estimator(self, model_fn: Callable[..., Any], **kwargs: Any) -> Estimator:
        """An estimator that trains, evaluates and exports on all workers of the job.

        Args:
          model_fn: builds the model; see `Estimator`.
          **kwargs: other arguments of `Estimator`: `model_dir`, `config`, `params`, `warm_start_from`, ...

        Raises:
          TypeError: an argument that `Estimator` has not.
          ValueError: as `Estimator`.
        """
        return Estimator(model_fn, **kwargs)

    def export_saved_model(
        self,
        savedmodel_dir: str | os.PathLike[str],
        checkpoint_dir: str | os.PathLike[str] | None = None,
        signature_def_fn: Callable[[], Any] | None = None,
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        clear_devices: bool = True,
        strip_default_attrs: bool = True,
    ) -> str | None:
        """Writes a SavedModel of stock TensorFlow operations with the values of a checkpoint. Worker 0 does so alone.

        Args:
          savedmodel_dir: directory in which a new one, named by the time in seconds, is made.
          checkpoint_dir: directory of checkpoints, of which the latest is taken, or the prefix of one; None: that of
            option `model_dir`.
          signature_def_fn: builds the model in the default graph and returns its signature; see `export`.
          assets_extra: files to copy: path inside `assets.extra` to the path of the source.
          as_text: write the graph as text.
          clear_devices: forget the devices of operations.
          strip_default_attrs: leave out attributes that have their default value.

        Returns:
          The directory of the SavedModel on worker 0; None, at once, on others.

        Raises:
          ValueError: no `signature_def_fn`; no checkpoint, or one that does not fit the model.
          FileNotFoundError, TypeError: as `export`.
        """
        if signature_def_fn is None:
            raise ValueError("export_saved_model: signature_def_fn is None, wanted a function that builds the model")
        return saved_models.export(
            savedmodel_dir,
            _checkpoint(checkpoint_dir),
            signature_def_fn,
            assets_extra=assets_extra,
            as_text=as_text,
            clear_devices=clear_devices,
            strip_default_attrs=strip_default_attrs,
        )


def _checkpoint(place: str | os.PathLike[str] | None) -> str:
    """The prefix of the checkpoint that is meant; ValueError where there is none."""
    place = context.options.model_dir if place is None else os.fspath(place)
    if place is None:
        raise ValueError("export_saved_model: checkpoint_dir is None, and so is option model_dir")
    if not tf.io.gfile.isdir(place):
        return place
    latest = latest_checkpoint(place)
    if latest is None:
        raise ValueError(f"export_saved_model: there is no checkpoint in {place!r}")
    return latest
