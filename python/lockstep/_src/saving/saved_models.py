"""SavedModels from checkpoints: stock TensorFlow operations and logical tensors, for servers without this library.

The model is built again in a graph of its own, without sharding. Its variables are not loaded into memory. The bytes of
their tensors are copied from the checkpoint to the SavedModel in small pieces (`bundle.py`), so that tables larger than
memory can be exported. A dynamic table becomes a hash table and a matrix of rows (`stock_tables.py`).

An updatable SavedModel has signatures with which a running server applies deltas (`delta_signature.py`, `deltas.py`).

A SavedModel is complete or absent: it is written to a hidden directory, which is synced and renamed. The next export
removes what a killed one has left.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from google.protobuf import text_format
from tensorflow.python.training.saver import BulkSaverBuilder

from lockstep._src.engine import file_errors, whole_files
from lockstep._src.engine.arguments import listed
from lockstep._src.engine.context import context
from lockstep._src.saving import bundle, checkpoint_ids, delta_files
from lockstep._src.saving.delta_signature import Updates
from lockstep._src.saving.row_table import RowTableSaveable
from lockstep._src.saving.stock_tables import StockTable
from lockstep._src.tables import dynamic

_tf1 = tf.compat.v1
_gfile = tf.io.gfile

# The spellings of TensorFlow's two classes of mode keys, and the SavedModel's tag for each mode.
_MODES = {"infer": "infer", "predict": "infer", "train": "train", "eval": "eval", "test": "eval"}
# The name of the signature for each mode, as TensorFlow's estimators give it.
_KEYS = {"infer": tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY, "train": "train", "eval": "eval"}
_TAGS = {"infer": tf.saved_model.SERVING, "train": tf.saved_model.TRAINING, "eval": "eval"}

_SIGNATURE = type(_tf1.saved_model.build_signature_def())


def export(
    export_dir_base: str | os.PathLike[str],
    checkpoint_path: str | os.PathLike[str] | None,
    signature_def_fn: Callable[[], Any],
    assets_extra: Mapping[str, str] | None = None,
    as_text: bool = False,
    clear_devices: bool = True,
    strip_default_attrs: bool = True,
    mode: str = "infer",
    *,
    updatable: bool = False,
) -> str | None:
    """Writes a SavedModel with the values of a checkpoint; follows HybridBackend's `export` (docs/hybridbackend.md).

    Stock operations serve dynamic tables. A key without a row reads the default row of its table, as in evaluation; see
    `get_embedding_variable`.

    Args:
      export_dir_base: directory in which a new directory is made; its name is the time in seconds.
      checkpoint_path: prefix of a checkpoint, as `tf.train.latest_checkpoint` returns it.
      signature_def_fn: builds the model in the default graph. It returns a signature (a SignatureDef), several (a dict
        of name to SignatureDef), or a pair of either and an operation. A server runs this operation when it loads the
        SavedModel, in place of the initialization of tables and local variables.
      assets_extra: files to copy: from the path inside the SavedModel's `assets.extra` to the path of the source.
      as_text: writes the graph as text.
      clear_devices: removes the devices of operations.
      strip_default_attrs: leaves out attributes that have their default value, for older TensorFlow versions.
      mode: the use of the SavedModel: 'infer' (or 'predict'), 'train' or 'eval' (or 'test'). It chooses the tag and the
        name of the signature; the model is always built for mode 'infer'.
      updatable: adds signatures with which a running server applies deltas (`lockstep.export_delta`): the signature
        `lockstep_apply_delta` changes the model, and `lockstep_version` returns its version.

    Returns:
      The directory of the SavedModel on the chief. On other workers None, without waiting.

    Raises:
      ValueError: the checkpoint does not exist, lacks variables of the model, or has them in another shape or type; the
        graph has operations that only this library can run; or an argument is invalid. With `updatable`: the checkpoint
        has no id, or the model has state that is neither a variable nor a dynamic table.
      FileNotFoundError: a file of `assets_extra` does not exist.
      TypeError: `signature_def_fn` did not return signatures.
    """
    mode = _checked_mode(mode)
    return _export(
        *("export", export_dir_base, checkpoint_path, signature_def_fn, assets_extra),
        as_text=as_text,
        clear_devices=clear_devices,
        strip_default_attrs=strip_default_attrs,
        default_key=_KEYS[mode],
        modes=[mode],
        updatable=updatable,
    )


def export_all(
    export_dir_base: str | os.PathLike[str],
    checkpoint_path: str | os.PathLike[str] | None,
    signature_defs_and_main_op_fn: Callable[[], Any],
    assets_extra: Mapping[str, str] | None = None,
    as_text: bool = False,
    clear_devices: bool = True,
    strip_default_attrs: bool = True,
    modes: Sequence[str] | None = None,
    *,
    updatable: bool = False,
) -> str | None:
    """Writes a SavedModel with signatures for several modes; follows HybridBackend's `export_all`.

    Args:
      export_dir_base: as in `export`.
      checkpoint_path: prefix of a checkpoint.
      signature_defs_and_main_op_fn: builds the model in the default graph, for mode 'infer', and returns its signatures
        by name, or a pair of them and the operation to run when the SavedModel is loaded. The signature of mode 'infer'
        is named 'serving_default', the others' signatures 'train' and 'eval'. Signatures of other names are kept.
      assets_extra: files to copy, as in `export`.
      as_text: writes the graph as text.
      clear_devices: removes the devices of operations.
      strip_default_attrs: leaves out attributes that have their default value.
      modes: some of 'infer', 'train' and 'eval', or their other names as in `export`. The SavedModel has the tags of
        these modes, and no signatures of the other modes. None: all modes that have a signature.
      updatable: adds signatures with which a running server applies deltas, as in `export`.

    Returns:
      The directory of the SavedModel on the chief. On other workers None, without waiting.

    Raises:
      ValueError: as in `export`; or none of the modes has a signature.
      FileNotFoundError: a file of `assets_extra` does not exist.
      TypeError: the function did not return signatures.
    """
    return _export(
        *("export_all", export_dir_base, checkpoint_path, signature_defs_and_main_op_fn, assets_extra),
        as_text=as_text,
        clear_devices=clear_devices,
        strip_default_attrs=strip_default_attrs,
        default_key=None,
        modes=None if modes is None else _checked_modes(modes),
        updatable=updatable,
    )


def _checked_modes(modes: Sequence[str]) -> list[str]:
    texts = listed("export_all", "modes", modes, lambda mode: isinstance(mode, str), "a list of modes")
    return [_checked_mode(mode) for mode in texts]


def _checked_mode(mode: str) -> str:
    if mode not in _MODES:
        raise ValueError(f"export: mode is {mode!r}, wanted one of {', '.join(map(repr, _MODES))}")
    return _MODES[mode]


def _export(
    name: str,
    export_dir_base: str | os.PathLike[str],
    checkpoint_path: str | os.PathLike[str] | None,
    fn: Callable[[], Any],
    assets_extra: Mapping[str, str] | None,
    *,
    as_text: bool,
    clear_devices: bool,
    strip_default_attrs: bool,
    default_key: str | None,
    modes: Sequence[str] | None,
    updatable: bool,
) -> str | None:
    """Writes a SavedModel for `export` and `export_all`.

    `default_key` is the name for a signature that `fn` returns without one; None if `fn` must return names.
    """
    # Only worker 0 exports; an evaluator outside of the job also has rank 0.
    if context.rank != 0:
        return None
    checkpoint = _Checkpoint(checkpoint_path)
    extra = _checked_assets(assets_extra)
    # Only the chief exports, so the model's scopes and collectives must not wait for the other workers.
    stock_tables_alone = dynamic.tables_made_by(functools.partial(StockTable, checkpoint, updatable=updatable))
    scopes = context.scope(mode="infer", sharding=False), context.detached()
    with tf.Graph().as_default() as graph, scopes[0], scopes[1], stock_tables_alone:
        signatures, main_op = _signatures(fn(), default_key)
        used = modes or ()
        if default_key is None:
            signatures, used = _select_modes(name, signatures, modes)
        checkpoint.check_variables(_tf1.global_variables())
        if main_op is None:
            main_op = tf.group(_tf1.local_variables_initializer(), _tf1.tables_initializer(), name="init_all")
        record = None
        if updatable:
            updates, record = _updates(checkpoint)
            signatures = {**signatures, **updates.signatures()}
            main_op = tf.group(main_op, updates.initializer, name="init_with_version")
        # TensorFlow would save the collection, and look for the tables when it loads the SavedModel.
        graph.clear_collection(dynamic.TABLES)
        saver = _CopyingSaver(checkpoint)
        if updatable:
            graph.clear_collection(_tf1.GraphKeys.SAVEABLE_OBJECTS)  # the saver has them; a MetaGraph cannot
        _check_operations(graph)

        def write(directory: str) -> None:
            _write_graph(
                directory,
                as_text,
                tags=[_TAGS[mode] for mode in used],
                signature_def_map=signatures,
                clear_devices=clear_devices,
                main_op=main_op,
                strip_default_attrs=strip_default_attrs,
                saver=saver,
            )
            _copy_assets(extra, directory)
            if record is not None:
                delta_files.write_export_record(directory, record)

        return _write_whole(os.fspath(export_dir_base), write)


def _write_graph(directory: str, as_text: bool, **arguments: Any) -> None:
    """Writes the default graph as a SavedModel; `arguments` go to TensorFlow's builder."""
    builder = _tf1.saved_model.Builder(directory)
    assets = _tf1.get_collection(_tf1.GraphKeys.ASSET_FILEPATHS)
    with _tf1.Session() as session:
        builder.add_meta_graph_and_variables(session, assets_collection=assets, **arguments)
    written = os.fsdecode(builder.save(as_text=as_text))
    if as_text:  # TensorFlow writes str(): of protobuf 5.29, this leaves quotes in bytes as they are
        with _gfile.GFile(written, "w") as file:
            file.write(text_format.MessageToString(builder._saved_model))


def _copy_assets(assets: Mapping[str, str], directory: str) -> None:
    """Copies files into the folder `assets.extra`.

    Args:
      assets: path in this folder -> path of the source.
      directory: the directory of the SavedModel.
    """
    for destination, source in assets.items():
        target = os.path.join(directory, "assets.extra", destination)
        _gfile.makedirs(os.path.dirname(target))
        _gfile.copy(source, target)


def _updates(checkpoint: _Checkpoint) -> tuple[Updates, delta_files.Record]:
    """Returns the state of the default graph's model that deltas change, and the record of its export."""
    version = checkpoint_ids.ids_of(checkpoint.path)
    if version is None:
        raise ValueError(
            f"export: checkpoint {checkpoint.path!r} has no checkpoint id ({checkpoint_ids.TENSOR}) to build on; with "
            "updatable=True wanted one of a session that saves increments (save_incremental_checkpoint_secs)"
        )
    tables = [table.mutable for table in dynamic.dynamic_tables()]
    others = [
        s.name for s in _tf1.get_collection(_tf1.GraphKeys.SAVEABLE_OBJECTS) if not isinstance(s, RowTableSaveable)
    ]
    if others:
        raise ValueError(
            f"export: the model has {', '.join(others)}, which is neither a variable nor a dynamic table; no delta can "
            "update it, so updatable=True is not possible"
        )
    updates = Updates(_tf1.global_variables(), tables, version[0])
    path = checkpoint.path if "://" in checkpoint.path else os.path.abspath(checkpoint.path)
    record = delta_files.Record("", 0, version[0], 0, path, updates.variables, updates.tables)
    return updates, record


def _select_modes(
    name: str, signatures: Mapping[str, Any], modes: Sequence[str] | None
) -> tuple[dict[str, Any], list[str]]:
    """Returns the signatures without signatures of other modes, and the modes that have a signature."""
    present = [mode for mode in _KEYS if _KEYS[mode] in signatures and (modes is None or mode in modes)]
    if not present:
        wanted = [_KEYS[mode] for mode in modes or _KEYS]
        raise ValueError(f"{name}: the signatures are {sorted(signatures)}, wanted one of {wanted}")
    others = {key for mode, key in _KEYS.items() if mode not in present}
    return {key: signature for key, signature in signatures.items() if key not in others}, present


def _write_whole(base: str, write: Callable[[str], None]) -> str:
    """Calls `write` with a hidden directory, then renames it to `base`/<seconds>; removes it if `write` fails."""
    with (
        file_errors.raised(f"export to {base} failed"),
        whole_files.draft_folder(base, "export") as draft,
    ):
        write(draft)
        seconds = int(time.time())
        while True:
            directory = os.path.join(base, str(seconds))
            if not _gfile.exists(directory):
                try:
                    whole_files.rename_folder(draft, directory)
                    return directory
                except tf.errors.OpError:
                    if not _gfile.exists(directory):  # the name is still free: the rename itself fails
                        raise
            seconds += 1


def _checked_assets(assets: Mapping[str, str] | None) -> dict[str, str]:
    checked = {}
    for destination, source in (assets or {}).items():
        normal = os.path.normpath(os.fspath(destination))
        if os.path.isabs(normal) or normal.split(os.sep)[0] in ("..", "."):
            raise ValueError(f"export: assets_extra has {destination!r}, wanted a path inside assets.extra")
        if not _gfile.exists(source) or _gfile.isdir(source):
            raise FileNotFoundError(f"export: assets_extra has {destination!r}: {source!r}, which is not a file")
        checked[normal] = os.fspath(source)
    return checked


def _signatures(returned: Any, default_key: str | None) -> tuple[dict[str, Any], tf.Operation | None]:
    """Checks and returns the result of `signature_def_fn`: (signatures by name, operation to run at loading or None).

    `default_key` is the name for a signature that has none; None if each signature must have a name.
    """
    main_op = None
    signatures = returned
    if isinstance(returned, tuple) and len(returned) == 2:
        signatures, main_op = returned
    if isinstance(signatures, _SIGNATURE) and default_key is not None:
        signatures = {default_key: signatures}
    good = isinstance(signatures, Mapping) and all(isinstance(s, _SIGNATURE) for s in signatures.values())
    if not good or not signatures:
        raise TypeError(
            f"export: signature_def_fn returned {type(returned).__name__} {str(returned)[:200]!r}, wanted "
            f"{'a SignatureDef, ' if default_key else ''}a dict of name to SignatureDef, or a pair of "
            f"{'one of them' if default_key else 'it'} and an operation"
        )
    return dict(signatures), main_op


def _check_operations(graph: tf.Graph) -> None:
    """Raises ValueError if the graph has operations that stock TensorFlow does not have; the message names them."""
    definition = graph.as_graph_def()
    nodes = [*definition.node, *(node for function in definition.library.function for node in function.node_def)]
    ours = [f"{node.name} ({node.op})" for node in nodes if node.op.startswith("Lockstep")]
    if ours:
        raise ValueError(
            f"export: the model has operations that run only with this library: {', '.join(ours[:5])}"
            f"{' ...' if len(ours) > 5 else ''}; build it without metrics and collectives"
        )


class _Checkpoint:
    """A checkpoint in TensorFlow's format: the source of the values, and of the shapes for checks."""

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        if path is None:
            raise ValueError("export: checkpoint_path is None: tf.train.latest_checkpoint found no checkpoint")
        self.path = os.fspath(path)
        if not _gfile.exists(f"{self.path}.index"):
            raise ValueError(f"export: checkpoint {self.path!r} does not exist; wanted the prefix of one")
        reader = tf.train.load_checkpoint(self.path)
        self.shapes = reader.get_variable_to_shape_map()
        self.dtypes = reader.get_variable_to_dtype_map()

    def check_variables(self, variables: Sequence[tf.Variable]) -> None:
        """Raises ValueError that names all variables that the checkpoint lacks, or has in another shape or type."""
        problems = []
        for variable in variables:
            name, shape = variable.op.name, variable.shape.as_list()
            part = variable._get_save_slice_info()  # not None for a part of a partitioned variable
            if part is not None:
                name, shape = part.full_name, list(part.full_shape)
            dtype = variable.dtype.base_dtype
            if name not in self.shapes:
                problems.append(f"{name} is missing")
            elif (list(self.shapes[name]), self.dtypes[name]) != (shape, dtype):
                has = f"{self.dtypes[name].name}{list(self.shapes[name])}"
                problems.append(f"{name} is {has}, the model has {dtype.name}{shape}")
        if problems:
            raise ValueError(f"export: checkpoint {self.path!r} does not fit the model: {'; '.join(problems)}")

    def copy(self, names: Sequence[str], target: str) -> None:
        """Writes the tensors `names` to a checkpoint `target`, in small pieces."""
        missing = sorted(set(names) - set(self.shapes))
        if missing:
            raise ValueError(f"export: checkpoint {self.path!r} lacks {', '.join(missing)}")
        bundle.copy_tensors(self.path, set(names), target)


class _CopyingSaver(tf.compat.v1.train.Saver):
    """A Saver of the default graph whose `save` copies tensors from a checkpoint, and reads no variables."""

    def __init__(self, checkpoint: _Checkpoint) -> None:
        graph = _tf1.get_default_graph()
        before = set(graph.get_operations())
        # An explicit builder: without one, a scope would use the builder that saves for the whole job.
        super().__init__(allow_empty=True, builder=BulkSaverBuilder())
        self._checkpoint = checkpoint
        # The SavedModel must have all tensors that the saver restores: variables by their logical names, tables, and
        # other saveables.
        self._names: list[str] = []
        for op in graph.get_operations():
            if op not in before and op.type == "RestoreV2":
                self._names += [name.decode() for name in tf.get_static_value(op.inputs[1])]

    def save(self, sess: Any, save_path: str, *args: Any, **kwargs: Any) -> str:
        """Writes the tensors of the model to `save_path`, from the checkpoint."""
        del sess, args, kwargs
        if self._names:
            self._checkpoint.copy(self._names, save_path)
        return save_path
