"""DeepRec's `CollectiveStrategy`: one class for the scope, the estimator and the export."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from lockstep._src.compat.sok import job
from lockstep._src.engine.context import context
from lockstep._src.engine.options import OptionValues
from lockstep._src.estimator.estimator import Estimator
from lockstep._src.saving import saved_models
from lockstep._src.saving.latest import latest_checkpoint
from lockstep._src.scope import embedding_scope, scope
from lockstep.launch.base.collective_backend import collective_backend

if TYPE_CHECKING:
    from typing_extensions import Unpack


class _CallableInt(int):
    """An int that returns itself when it is called, because DeepRec's manual uses both `n` and `n()`."""

    def __call__(self) -> int:
        return int(self)


class CollectiveStrategy:
    """Synchronous training of a TensorFlow 1 program; follows DeepRec's class of this name (Collective-Training.md).

    In DeepRec, the environment variable COLLECTIVE_STRATEGY, 'hb' or 'sok', chooses between two engines. Here both
    values mean this project's engine, and training is the same. Gradients are the mean over the workers, learning rates
    are not changed, and tables that are made in `embedding_scope` are sharded by rows. With 'sok', programs may also
    use SparseOperationKit's functions, `sok.lookup_sparse` for instance, inside `scope`: the workers are its ranks,
    without `sok.init`. docs/deeprec.md lists the differences from DeepRec.

    Attributes:
      backend: 'hb' or 'sok', the value of the variable; 'hb' if it is not set.

    Raises:
      ValueError: COLLECTIVE_STRATEGY has another value.
    """

    def __init__(self) -> None:
        self.backend = collective_backend(os.environ)
        if self.backend == "sok":
            # Connects nothing: a process that opens no scope may make a strategy as well.
            job.join_scope()

    def __repr__(self) -> str:
        return f"CollectiveStrategy(backend={self.backend!r}, rank={self.rank}, world_size={self.world_size})"

    def scope(self, *args: Any, **kwargs: Unpack[OptionValues]) -> contextlib.AbstractContextManager[None]:
        """Returns the scope around the whole model: a model that is built inside trains on all workers.

        Args:
          *args: not allowed (DeepRec accepts and ignores them).
          **kwargs: options of the job (docs/hybridbackend.md, "Options"); they apply while the scope is open.

        Raises:
          TypeError: an argument has no name, or a value has a wrong type.
          AttributeError: an option does not exist.
          ValueError: a value is out of range.
        """
        if args:
            raise TypeError(f"CollectiveStrategy.scope: got {args!r}, wanted options by name, such as seed=7")
        return scope(**kwargs)

    def embedding_scope(self, **kwargs: Unpack[OptionValues]) -> contextlib.AbstractContextManager[None]:
        """Returns the scope around the tables: tables that are made inside are sharded over the workers.

        Args:
          **kwargs: options of the job, as in `scope`.

        Raises:
          TypeError, AttributeError, ValueError: as in `scope`.
        """
        return embedding_scope(**kwargs)

    @property
    def world_size(self) -> int:
        """The number of workers in the job; `strategy.world_size` and `strategy.world_size()` are the same number."""
        return _CallableInt(context.world_size)

    @property
    def rank(self) -> int:
        """The rank of this worker, from 0; `strategy.rank` and `strategy.rank()` are the same number."""
        return _CallableInt(context.rank)

    def estimator(self, model_fn: Callable[..., Any], **kwargs: Any) -> Estimator:
        """Returns an estimator that trains, evaluates and exports on all workers of the job.

        Args:
          model_fn: builds the model; see `Estimator`.
          **kwargs: other arguments of `Estimator`: `model_dir`, `config`, `params`, `warm_start_from`, ...

        Raises:
          TypeError: `Estimator` does not have an argument of this name.
          ValueError: as in `Estimator`.
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
        """Writes a SavedModel of stock TensorFlow operations with the values of a checkpoint, on worker 0 only.

        Args:
          savedmodel_dir: directory in which a new directory is made; its name is the time in seconds.
          checkpoint_dir: directory of checkpoints, of which the latest is used, or the prefix of one. None: the
            directory of the option `model_dir`.
          signature_def_fn: builds the model in the default graph and returns its signature; see `export`.
          assets_extra: files to copy: from the path inside `assets.extra` to the path of the source.
          as_text: writes the graph as text.
          clear_devices: removes the devices of operations.
          strip_default_attrs: leaves out attributes that have their default value.

        Returns:
          The directory of the SavedModel on worker 0. On other workers None, without waiting.

        Raises:
          ValueError: there is no `signature_def_fn`, no checkpoint, or the checkpoint does not fit the model.
          FileNotFoundError, TypeError: as in `export`.
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
    """Returns the prefix of the checkpoint that `place` names. Raises ValueError if there is none."""
    place = context.options.model_dir if place is None else os.fspath(place)
    if place is None:
        raise ValueError("export_saved_model: checkpoint_dir and option model_dir are both None; pass checkpoint_dir")
    if not tf.io.gfile.isdir(place):
        return place
    latest = latest_checkpoint(place)
    if latest is None:
        raise ValueError(f"export_saved_model: no checkpoint in {place!r}")
    return latest
