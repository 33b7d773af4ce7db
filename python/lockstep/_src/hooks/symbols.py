"""The table of all symbols of TensorFlow and Keras that are replaced.

A row is a constant, by which the code that replaces the symbol names it. `TABLE` has all rows.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import Any

from lockstep._src.hooks.hook import Hook, Period

SCOPE = Period("scope", "when the outermost `scope()` is entered", "when the last `scope()` ends")
SEED = Period("seed", "when a `scope(seed=...)` is entered", "when that scope ends")
JOB = Period("job", "when the process joins a job, in a scope, a collective or `hvd.init()`", "when it leaves the job")
NAMED_JOB = Period(
    "named job",
    "when `hvd.init()` is called. Reasons that begin with *From the first* name a later call that does it",
    "when `hvd.shutdown()` is called",
)
TABLES = Period(
    "dynamic tables",
    "when the first dynamic table, or variable of SOK, is made",
    "at the next end of a scope or job after the last of them was deleted",
)
EVALUATION = Period("evaluation", "when an `EvaluationHook` begins to build its graph", "when the graph is built")
BEGIN = Period(
    "begin",
    "when a `CheckpointSaverHook` or a `SummarySaverHook` begins on a worker other than 0",
    "when it has begun",
)
FACADE = Period(
    "façade",
    "when `horovod.tensorflow.data.compute_service` is imported",
    "never. TensorFlow has no such name, so none of its code can meet it",
)
SOK_LAYERS = Period(
    "layers of SOK",
    "when the first layer of SOK 1.x is made",
    "at the next end of a scope or job after the last of them was deleted",
)
SOK = Period("SOK", "when `sok.init()` is called, unless with `use_legacy_optimizer=False`", "never, as in SOK")
PERIODS = (SCOPE, SEED, JOB, NAMED_JOB, TABLES, EVALUATION, BEGIN, FACADE, SOK, SOK_LAYERS)

_made: list[Hook] = []


def _row(declaration: str, why: str | dict[Period, str], **more: Any) -> Hook:
    """Returns a row, and adds it to the table.

    Args:
      declaration: the symbol and its signature as in a definition, "module:Class.method(self, ...)", or the symbol, a
        space, and "property", "class", "module" or "absent".
      why: the reason, for each period; a reason without a period belongs to a scope.
      more: further attributes of the row.
    """
    found = re.fullmatch(r"([^ (]+) ?(.+)", declaration)
    if found is None:
        raise ValueError(f"hook {declaration!r}: wanted 'module:symbol' and a signature or a kind")
    symbol, signature = found.groups()
    hook = Hook(symbol, signature, {SCOPE: why} if isinstance(why, str) else why, **more)
    _made.append(hook)
    return hook


def _rows(
    owner: str, names: Iterable[str], signature: str, why: str | dict[Period, str], also: str = "", only: str = ""
) -> tuple[Hook, ...]:
    """Returns rows of one owner, "module:" or "module:Class.", that differ only in name."""
    return tuple(_row(owner + name + signature, why, also=(also + name,) if also else (), only=only) for name in names)


_row_of_several = functools.partial(_row, only="several workers")
_rows_of_several = functools.partial(_rows, only="several workers")
_rows_of_others = functools.partial(_rows, only="workers other than 0")

# Optimizers of TensorFlow 1.

_OPTIMIZER = "tensorflow.python.training.optimizer:"
OPTIMIZER_INIT = _row(
    _OPTIMIZER + "Optimizer.__init__(self, ...)",
    "An optimizer that is made in a scope exchanges gradients after it as well.",
)
OPTIMIZER_SUBCLASS = _row(
    _OPTIMIZER + "Optimizer.__init_subclass__(...)",
    "Optimizers whose class the program defines in a scope exchange gradients there.",
)
COMPUTE_GRADIENTS = _row(
    _OPTIMIZER + "Optimizer.compute_gradients(self, ...)",
    "Gradients are exchanged where they are computed.",
    subclasses=True,
)
APPLY_GRADIENTS = _row(
    _OPTIMIZER + "Optimizer.apply_gradients(self, grads_and_vars, ...)",
    "Gradients that the program computed by itself are exchanged before they are applied.",
    subclasses=True,
)
_FUSED = "A gradient of slices is applied by one fused operation."
UPDATE_OP = _row(_OPTIMIZER + "_DenseResourceVariableProcessor.update_op(self, optimizer, g)", _FUSED)
_STAND_IN = "A dynamic table gets its gradient by a fused rule or through a stand-in."
GET_PROCESSOR = _row(_OPTIMIZER + "_get_processor(v)", {TABLES: _STAND_IN})
END_STEP = _row(
    _OPTIMIZER + "Optimizer.apply_gradients(self, grads_and_vars, global_step=None, name=None, ...)",
    {TABLES: "The step ends in dynamic tables when all updates have been made."},
)

_LEGACY = {SOK: "Programs of SOK get Keras 2's legacy optimizers, where Keras has them."}
KERAS_OPTIMIZERS = _row("tensorflow:keras.optimizers module", _LEGACY)
OPTIMIZERS = _row("tensorflow:optimizers module", _LEGACY)

# Variables.

_RESOURCE = "tensorflow.python.ops.resource_variable_ops:"
_STATE = "tensorflow.python.ops.state_ops:"
_V1 = "tensorflow:compat.v1."
_BEGUN = "Variables become sharded tables, or begin as worker 0's."
CREATOR_STACK = _row("tensorflow.python.framework.ops:Graph._variable_creator_stack property", _BEGUN)
GET_VARIABLE = _row(
    "tensorflow.python.ops.variable_scope:_VariableStore.get_variable"
    "(self, name, shape=None, dtype=tf.float32, initializer=None, ...)",
    "A sharded table is reused by its logical shape, and no partitioner splits it.",
)
_SLOT = "A slot of a sharded table has the shape of the shard"
CREATE_SLOT = _row(
    "tensorflow.python.training.slot_creator:_create_slot_var(primary, ...)",
    _SLOT + ", and values of its own on each worker.",
)
VARIABLES_INITIALIZER = _row(
    "tensorflow.python.ops.variables:variables_initializer(var_list, name='init')",
    "Variables that were made before the scope begin as worker 0's.",
    also=(_V1 + "variables_initializer", _V1 + "initializers.variables"),
)
_ASSIGNED = "Values that differ between workers are averaged, summed or taken from worker 0 before they are assigned."
_ASSIGN_METHODS = tuple(
    _row(f"{owner}.{method}, ...)", _ASSIGNED)
    for owner in (
        _RESOURCE + "BaseResourceVariable",
        _RESOURCE + "ResourceVariable",
        "tensorflow.python.ops.ref_variable:RefVariable",
    )
    for method in ("assign(self, value", "assign_add(self, delta", "assign_sub(self, delta")
)
ASSIGNMENTS = _ASSIGN_METHODS + _rows(
    _STATE, ("assign", "assign_add", "assign_sub"), "(ref, value, ...)", _ASSIGNED, also=_V1
)
_SCATTERED = "Ids of a sharded table are refused where rows of the shard are meant."
_SCATTER_NAMES = ("add", "div", "max", "min", "mul", "nd_add", "nd_sub", "nd_update", "sub", "update")
SCATTERS = (
    *_rows(_STATE, (f"scatter_{name}" for name in _SCATTER_NAMES), "(ref, indices, ...)", _SCATTERED, also=_V1),
    *_rows(_STATE, ("batch_scatter_update",), "(ref, indices, ...)", _SCATTERED, also=_V1),
    *_rows(_STATE, ("scatter_nd_max", "scatter_nd_min"), "(ref, indices, updates, ...)", _SCATTERED),
)
_EMBEDDING = "tensorflow.python.ops.embedding_ops:"
LOOKUP = _row(
    _EMBEDDING + "_embedding_lookup_and_transform(params, ids, partition_strategy='mod', ...)",
    "A list of sharded tables is looked up only by `mod`; other strategies would read other rows.",
)
POOLING = _row(
    _EMBEDDING + "embedding_lookup_sparse_impl(params, segment_ids, sp_weights, ids, ...)",
    {
        SCOPE: "Ragged ids of `tf.compat.v1.nn.embedding_lookup_sparse` get fused operations.",
        TABLES: "A dynamic table counts the ids of a batch before duplicates are dropped.",
    },
)
VARIABLE_SHAPE = _row(
    "tensorflow.python.ops.gen_resource_variable_ops:variable_shape(input, out_type=tf.int32, name=None)",
    {TABLES: "Gradients of TensorFlow 1's branches ask for the shape of a dynamic table, which is [0, D]."},
)
GRAPH_INIT = _row(
    "tensorflow.python.framework.ops:Graph.__init__(self)",
    {SEED: "Graphs that are made inside draw random numbers from the scope's seed."},
)

# Gradients and their norms, and statistics of a batch.

_SEEN = {
    SCOPE: "A gradient has one slice for each row; a table's gradient is noted as a part of the whole.",
    TABLES: "A table's gradient has one slice for each row, the sum over the workers.",
}
GRADIENTS = _row("tensorflow.python.ops.gradients_util:_GradientsHelper(ys, xs, ...)", _SEEN)
TAPE_GRADIENT = _row("tensorflow.python.eager.backprop:GradientTape.gradient(self, target, sources, ...)", _SEEN)
_SPREAD = "A gradient of a sharded table is spread over the workers, and its norm is the norm of all parts."
GLOBAL_NORM = _row(
    "tensorflow.python.ops.clip_ops:global_norm(t_list, name=None)",
    _SPREAD,
    also=("tensorflow:linalg.global_norm", _V1 + "global_norm", _V1 + "linalg.global_norm")
    + ("tensorflow:compat.v2.linalg.global_norm",),
)
CLIP_BY_NORM = _row(
    "tensorflow.python.ops.clip_ops:clip_by_norm(t, clip_norm, axes=None, name=None)",
    _SPREAD,
    also=("tensorflow:clip_by_norm", _V1 + "clip_by_norm", "tensorflow:compat.v2.clip_by_norm"),
)
CLIP_BY_AVERAGE_NORM = _row(
    "tensorflow.python.ops.clip_ops:clip_by_average_norm(t, clip_norm, name=None)",
    _SPREAD,
    also=(_V1 + "clip_by_average_norm",),
)
IS_ALL_FINITE = _row(
    "tensorflow.python.training.experimental.loss_scale:_is_all_finite(grads)",
    "Workers skip the same steps where a gradient is not finite on one of them.",
)
_LOSSES = "tensorflow.python.ops.losses.losses_impl:"
_BY_DIVISOR = "A loss of weighted values counts by the number by which it divides, in place of the rows."
WEIGHTED_LOSS = _row_of_several(
    _LOSSES + "compute_weighted_loss(losses, weights=1.0, scope=None, loss_collection='losses',"
    " reduction='weighted_sum_by_nonzero_weights')",
    _BY_DIVISOR,
    also=(_V1 + "losses.compute_weighted_loss",),
)
MEAN_OF_LOSSES = _row_of_several(_LOSSES + "_safe_mean(losses, num_present)", _BY_DIVISOR)
MOMENTS = _row(
    "tensorflow.python.ops.nn_impl:moments(x, axes, shift=None, name=None, keep_dims=None, keepdims=None)",
    "Moments over a batch cover all workers' batches.",
    also=(_V1 + "nn.moments",),
)
_NORMALIZED = "Batch normalization is by the moments of all workers' batches."
FUSED_BATCH_NORM = _row(
    "tensorflow.python.ops.nn_impl:fused_batch_norm(x, scale, offset, mean=None, variance=None, epsilon=0.001,"
    " data_format='NHWC', is_training=True, name=None, exponential_avg_factor=1.0)",
    _NORMALIZED,
    also=(_V1 + "nn.fused_batch_norm",),
)
_AVERAGES = "tensorflow.python.training.moving_averages:"
MOVING_AVERAGE = _row(
    _AVERAGES + "assign_moving_average(variable, value, ...)",
    "Moving averages are of all workers' batches.",
    also=("tensorflow:compat.v2.__internal__.train.assign_moving_average",),
)
RESTING_AVERAGE = _row(
    _AVERAGES + "assign_moving_average(variable, ...)",
    {EVALUATION: "The evaluated model does not touch training's moving averages."},
)

# Data.

_DATASETS = "tensorflow.python.data.ops.dataset_ops:"
_ENDS = "Data ends on all workers together."
ITERATIONS = _rows(_DATASETS, ("DatasetV2.__iter__", "DatasetV1Adapter.__iter__"), "(self)", _ENDS)
_RESTARTS = {EVALUATION: "Data of an evaluation start again for each evaluation."}
ONE_SHOT_ITERATORS, INITIALIZABLE_ITERATORS = (
    (
        _row(f"{_DATASETS}{name}(dataset{more}", {SCOPE: _ENDS, **_RESTARTS}, also=(f"{_V1}data.{name}",)),
        _row(f"{_DATASETS}DatasetV1.{name}(self{more}", {SCOPE: _ENDS, **_RESTARTS}),
    )
    for name, more in (("make_one_shot_iterator", ")"), ("make_initializable_iterator", ", ...)"))
)
_ITERATOR = "tensorflow.python.data.ops.iterator_ops:Iterator."
STRUCTURED_ITERATORS = (
    _row(f"{_ITERATOR}from_structure(output_types, output_shapes=None, shared_name=None, output_classes=None)", _ENDS),
    _row(f"{_ITERATOR}from_string_handle(string_handle, output_types, output_shapes=None, output_classes=None)", _ENDS),
)
MAKE_INITIALIZER = _row(_ITERATOR + "make_initializer(self, dataset, name=None)", _RESTARTS)
SEND_TO_DATA_SERVICE = _row(
    "tensorflow:data.Dataset.send_to_data_service absent", {FACADE: "Horovod adds this method to datasets."}
)

# Sessions and checkpoints.

_SAVER = "tensorflow.python.training.saver:Saver."
SAVER_INIT = _row(_SAVER + "__init__(self, ...)", "Savers keep as many checkpoints as the job's options say.")
SAVER_BUILD = _row(
    _SAVER + "_build(self, checkpoint_path, build_save, build_restore)",
    {
        SCOPE: "All workers save and restore one checkpoint together.",
        TABLES: "A saver of a graph with dynamic tables saves their keys and rows.",
    },
)
_FILES = "Errors of files{} end the program. {} takes some of them for the end of data."
SAVER_SAVE = _row(
    _SAVER + "save(self, sess, save_path, global_step=None, ...)", {NAMED_JOB: _FILES.format("", "TensorFlow")}
)
SAVER_RESTORE = _row(
    _SAVER + "restore(self, sess, save_path)",
    {NAMED_JOB: "An error says which checkpoint is damaged or cannot be read."},
)
IS_CUSTOM_DEVICE = _row(
    "tensorflow.python.eager.context:Context.is_custom_device(self, device_name)",
    {NAMED_JOB: "A saver of a graph asks it, and so would take all GPUs before the program's session chooses one."},
)
INIT_FROM_CHECKPOINT = _row(
    "tensorflow.python.training.checkpoint_utils:_init_from_checkpoint(ckpt_dir_or_file, assignment_map)",
    {TABLES: "`init_from_checkpoint` finds dynamic tables, and gives them the rows of a checkpoint."},
)
CHECKPOINT_INITIALIZER = _row(
    "tensorflow.python.training.checkpoint_utils:_set_checkpoint_initializer(variable, ckpt_file, tensor_name, ...)",
    "`init_from_checkpoint` reads a worker's own rows of a sharded table.",
)
MONITORED_SESSION = _row(
    "tensorflow.python.training.monitored_session:MonitoredTrainingSession"
    "(master='', is_chief=True, checkpoint_dir=None, scaffold=None, hooks=None, chief_only_hooks=None, ...)",
    "Hooks and checkpoints of a session run on all workers in step.",
    also=(_V1 + "train.MonitoredTrainingSession",),
)
SUMMARY_WRITER = _row(
    "tensorflow.python.training.basic_session_run_hooks:SummaryWriterCache.get(logdir)",
    {BEGIN: "`CheckpointSaverHook` and `SummarySaverHook` open no event files on workers other than 0."},
)

# Errors.

_FIRST = {JOB: "Errors begin with the operation's own sentence; TensorFlow's stacks come after it."}
INTERPOLATE_GRAPH = _row("tensorflow.python.framework.error_interpolation:interpolate_graph(message, graph)", _FIRST)
INTERPOLATE_RUNTIME = _row(
    "tensorflow.python.eager.polymorphic_function.atomic_function:InterpolateRuntimeError.__exit__(self, typ, exc, tb)",
    _FIRST,
)
STATUS_TO_EXCEPTION = _row("tensorflow.python.eager.core:_status_to_exception(status)", _FIRST)

# Keras 3: variables and optimizers.

_TF_BACKEND = "keras.src.backend.tensorflow."
KERAS_INITIALIZE = _rows(
    _TF_BACKEND + "core:Variable.", ("_initialize", "_initialize_with_initializer"), "(self, ...)", _BEGUN
)
KERAS_TAKE = _row(
    _TF_BACKEND + "numpy:take(x, indices, axis=None)",
    "Rows of a sharded table are looked up. Keras would read the whole table to ask for its shape.",
)
_COUNTED = "`model.summary()` counts whole tables, where Keras would count a worker's rows."
KERAS_COUNTS = _rows("keras.src.utils.summary_utils:", ("count_params", "weight_memory_size"), "(weights)", _COUNTED)
FUNCTION_INITIALIZE = _row(
    "tensorflow.python.eager.polymorphic_function.polymorphic_function:Function._initialize"
    "(self, args, kwds, add_initializers_to=None)",
    "A function whose first trace makes variables of Keras is traced twice, as without a scope.",
    only="Keras 3",
)
_TF_OPTIMIZER = _TF_BACKEND + "optimizer:TFOptimizer."
_OWN_OPTIMIZER = "A table of Keras RS is trained by the optimizer of its `TableConfig`"
KERAS_ADD_SLOT = _row(
    _TF_OPTIMIZER + "add_variable_from_reference(self, reference_variable, name=None, initializer='zeros')",
    {SCOPE: _SLOT + ".", TABLES: "Slots of a dynamic table are columns of it."},
)
KERAS_BACKEND_UPDATE = _row(
    _TF_OPTIMIZER + "_backend_update_step(self, grads, trainable_variables, learning_rate)",
    {SCOPE: "Optimizers that read a sharded table read the shard.", TABLES: _STAND_IN},
)
KERAS_BACKEND_APPLY = _row(
    _TF_OPTIMIZER + "_backend_apply_gradients(self, grads, trainable_variables)",
    {SCOPE: _OWN_OPTIMIZER + ".", TABLES: "Options that need whole variables are refused for dynamic tables."},
)
KERAS_CLIP = _row(
    _TF_OPTIMIZER + "_clip_gradients(self, grads)",
    {
        SCOPE: "Gradients of tables are noted as parts, also those that Keras has summed over several passes.",
        TABLES: "Gradients of dynamic tables are clipped as slices; Keras would make them dense.",
    },
)
_OPTIMIZERS = "keras.src.optimizers."
_SCALES = _OPTIMIZERS + "loss_scale_optimizer:LossScaleOptimizer."
KERAS_CHECK_FINITE = _row(
    _SCALES + "check_finite(self, grads)",
    {SCOPE: "Workers skip the same steps.", TABLES: "Slices of all workers are checked."},
)
# By class, with the class's name of the gradient.
KERAS_UPDATE_STEPS = {
    name: _row(f"{_OPTIMIZERS}{name.lower()}:{name}.update_step(self, {gradient}, variable, learning_rate)", _FUSED)
    for name, gradient in (
        ("SGD", "gradient"),
        ("Adagrad", "gradient"),
        ("Adam", "gradient"),
        ("Ftrl", "gradient"),
        ("RMSprop", "gradient"),
    )
}
_BASE_OPTIMIZER = _OPTIMIZERS + "base_optimizer:"
KERAS_APPLY = _row(
    _BASE_OPTIMIZER + "BaseOptimizer.apply(self, grads, trainable_variables=None)",
    "Gradients are exchanged before they are applied.",
    subclasses=True,
)
KERAS_APPLY_GRADIENTS = _row(
    _BASE_OPTIMIZER + "BaseOptimizer.apply_gradients(self, grads_and_vars)",
    {SOK_LAYERS: "Programs of SOK 1.x pass an argument that only Keras 2 has."},
)
KERAS_BUILD = _row(
    _BASE_OPTIMIZER + "BaseOptimizer.build(self, variables)", _OWN_OPTIMIZER + ", which the model's optimizer saves."
)
KERAS_SCALE_LOSS = _row_of_several(
    _BASE_OPTIMIZER + "BaseOptimizer.scale_loss(self, loss)",
    "A worker's loss counts by the rows of its batch.",
    subclasses=True,
)
KERAS_GLOBAL_NORM = _row_of_several(_BASE_OPTIMIZER + "global_norm(value_list)", _SPREAD)
KERAS_OPTIMIZER_VARIABLES = tuple(
    _row(
        owner + "variables property",
        {NAMED_JOB: "From the first `hvd.DistributedGradientTape`, programs may call `optimizer.variables()`."},
    )
    for owner in (_BASE_OPTIMIZER + "BaseOptimizer.", _SCALES)
)
_FROM = "From the first `hvd.DistributedOptimizer`"
_SCALED = {
    NAMED_JOB: f"{_FROM}, a `LossScaleOptimizer` around one exchanges gradients before it looks whether they are"
    " finite."
}
_SKIPS = {NAMED_JOB: f"{_FROM}, one in a `LossScaleOptimizer` knows that steps may be skipped."}
KERAS_SCALED_APPLY = _row(_SCALES + "apply(self, grads, trainable_variables=None)", _SCALED)
KERAS_SCALED_INIT = _row(_SCALES + "__init__(self, inner_optimizer, ...)", _SKIPS)

# Keras 3: training.

_TRAINER = "keras.src.trainers.trainer:"
SUPPORTS_JIT = _row(_TRAINER + "model_supports_jit(model)", "XLA cannot compile exchanges, nor lookups in tables.")
AUTO_JIT = _row(
    _TRAINER + "Trainer._resolve_auto_jit_compile(self)",
    {NAMED_JOB: f"{_FROM}, its models are not compiled by XLA."},
    optional=True,
)
KERAS_COMPILE = _row(
    _TRAINER + "Trainer.compile(self, ...)",
    {NAMED_JOB: f"{_FROM}, `experimental_run_tf_function` of Horovod's programs has no effect, as in Keras 2."},
)
METRICS_RESULT = _row_of_several(
    _TRAINER + "Trainer._get_metrics_result_or_logs(self, logs)", "Metrics are of all workers' counts."
)
REDUCE_VALUES = _row_of_several(
    "keras.src.losses.loss:reduce_values(values, sample_weight=None, reduction='sum_over_batch_size')",
    "The loss of a batch without rows is 0.",
)
WEIGHTED_VALUES = _row_of_several(
    "keras.src.losses.loss:reduce_weighted_values"
    "(values, sample_weight=None, mask=None, reduction='sum_over_batch_size', dtype=None)",
    _BY_DIVISOR,
)
KERAS_LOSS = _row_of_several(
    "keras.src.losses.loss:Loss.__call__(self, y_true, y_pred, sample_weight=None)",
    "Worker 0 warns of a loss function that returns one number for a batch.",
)
_BY_ROWS = "Losses of outputs count by the rows of a batch."
COMPILE_LOSS = _row_of_several("keras.src.trainers.compile_utils:CompileLoss.call(self, ...)", _BY_ROWS)
MEAN_UPDATE = _row_of_several(
    "keras.src.metrics.reduction_metrics:Mean.update_state(self, values, sample_weight=None)", _BY_ROWS
)
_TF_TRAINER = _TF_BACKEND + "trainer:"
ENUMERATE_BATCHES = _row(
    _TF_TRAINER + "TFEpochIterator._enumerate_iterator(self)",
    "Batches come on all workers or on none. Worker 0 warns of data that begins again after a restore.",
)
KERAS_PASSES = _rows_of_several(
    _TF_TRAINER + "TensorFlowTrainer.",
    ("fit", "evaluate", "predict"),
    "(self, ...)",
    "Passes over data end on all workers after the same batch.",
)
BATCH_MOMENTS = _row_of_several(
    "keras.src.layers.normalization.batch_normalization:BatchNormalization._moments(self, inputs, mask)", _NORMALIZED
)

# Keras 3: callbacks and files.

_CALLBACKS = "keras.src.callbacks."
_CALLBACK_LIST = _CALLBACKS + "callback_list:CallbackList."
_BATCHES = tuple(f"on_{what}_batch_{moment}" for what in ("train", "test", "predict") for moment in ("begin", "end"))
_KERAS_FILES = _FILES.format(" in callbacks", "Keras")
_DISTRIBUTED_FILES = {NAMED_JOB: f"{_FROM}. {_KERAS_FILES}"}
KERAS_CALLBACKS = _rows(
    _CALLBACK_LIST, _BATCHES, "(self, batch, logs=None)", {SCOPE: _KERAS_FILES, **_DISTRIBUTED_FILES}
)
_STOPS = "All workers stop after the same batch when a callback of one asks for it."
BATCH_ENDS = _rows_of_several(_CALLBACK_LIST, _BATCHES[1::2], "(self, batch, logs=None)", _STOPS)
EPOCH_END = _row_of_several(_CALLBACK_LIST + "on_epoch_end(self, epoch, logs=None)", _STOPS)
TRAIN_BEGIN = _row_of_several(
    _CALLBACK_LIST + "on_train_begin(self, logs=None)",
    "Workers compare the callbacks that save models, which need all workers.",
)
SAVED_FILES = _rows(
    _CALLBACKS,
    ("backup_and_restore", "model_checkpoint"),
    ":file_utils module",
    "Worker 0 writes and deletes files for the job. A file is replaced when the new one is complete.",
)
_ALONE = "Only worker 0 has these files."
DROPPED_FILES = _rows_of_others(_CALLBACKS, ("csv_logger", "tensorboard"), ":file_utils module", _ALONE)
_RESTORED = "All workers restore a backup, or none."
_BACKUP = _CALLBACKS + "backup_and_restore:BackupAndRestore."
RESTORE_BACKUP = _row(
    _BACKUP + "on_train_begin(self, logs=None)", _RESTORED + " Worker 0 warns of data that begins again."
)
SAVE_BACKUP = _row(
    _BACKUP + "_save_model(self)",
    "A backup's weights have its epoch, so that both are replaced at once. The launcher gets the path.",
)
SHOULD_SAVE = _row_of_several(
    _CALLBACKS + "model_checkpoint:ModelCheckpoint._should_save_model(self, ...)",
    "Worker 0 decides for the job whether a model is saved.",
)
BEST_WEIGHTS = _rows(
    _CALLBACKS + "early_stopping:EarlyStopping.",
    ("on_epoch_end(self, epoch, logs=None)", "on_train_end(self, logs=None)"),
    "",
    "The best weights include dynamic tables.",
)
_TENSORBOARD = _CALLBACKS + "tensorboard:TensorBoard."
LOG_WEIGHTS = _row_of_several(_TENSORBOARD + "_log_weights(self, epoch)", "Histograms are of whole sharded tables.")
SUMMARY_WRITERS = _rows_of_others(_TENSORBOARD, ("_train_writer", "_val_writer"), " property", _ALONE)
(START_PROFILER,) = _rows_of_others(_TENSORBOARD, ("_start_profiler",), "(self, logdir)", _ALONE)
_SAVING = "keras.src.saving.saving_api:"
_REPLACED = "A file is replaced when the new one is complete."
_WHOLE_FILES = "Worker 0 writes one file, of whole tables. " + _REPLACED
SAVE_MODEL = (
    _row(
        _SAVING + "save_model(model, filepath, ...)",
        _WHOLE_FILES,
        also=tuple(f"{k}.{m}:save_model" for k in ("keras", "keras._tf_keras.keras") for m in ("saving", "models")),
    ),
    _row(
        _SAVING + "save_weights(model, filepath, ...)",
        _WHOLE_FILES,
        also=tuple(f"{k}.saving:save_weights" for k in ("keras", "keras._tf_keras.keras")),
    ),
)
EXPORT_MODEL = _row("keras.src.models.model:Model.export(self, filepath, ...)", _REPLACED)
LOAD_WEIGHTS = _row_of_several(_SAVING + "load_weights(model, filepath, ...)", _RESTORED)

# Keras RS.

_DISTRIBUTED_EMBEDDING = "keras_rs.src.layers.embedding.base_distributed_embedding:DistributedEmbedding."
KERAS_RS_INIT = _row(
    _DISTRIBUTED_EMBEDDING + "_default_device_init(self, feature_configs, table_stacking)",
    "A `TableConfig` without a vocabulary size is refused, with the name of this library's layer.",
)
KERAS_RS_BUILD = _row(_DISTRIBUTED_EMBEDDING + "_default_device_build(self, input_shapes)", _OWN_OPTIMIZER + ".")
KERAS_RS_TABLES = _row(
    _DISTRIBUTED_EMBEDDING + "_default_device_get_embedding_tables(self)",
    "`get_embedding_tables` returns whole tables. A worker has only its shard.",
)

# Keras 2.

_KERAS_2 = "tf_keras.src."
# By class, with the class's name of the gradient.
KERAS_2_UPDATE_STEPS = {
    name: _row(f"{_KERAS_2}optimizers.{name.lower()}:{name}.update_step(self, {gradient}, variable)", _FUSED)
    for name, gradient in (
        ("SGD", "gradient"),
        ("Adagrad", "grad"),
        ("Adam", "gradient"),
        ("AdamW", "gradient"),
        ("Ftrl", "gradient"),
        ("RMSprop", "gradient"),
    )
}
KERAS_2_LEGACY_APPLY = tuple(
    _row(
        f"{_KERAS_2}optimizers.legacy.{owner}._resource_apply_sparse_duplicate_indices"
        f"(self, grad, {variable}, indices, **kwargs)",
        _FUSED,
    )
    for owner, variable in (("optimizer_v2:OptimizerV2", "handle"), ("gradient_descent:SGD", "var"))
)
KERAS_2_SAVE = _rows(
    _KERAS_2 + "saving.saving_api:",
    ("save_model", "save_weights"),
    "(model, filepath, overwrite=True, ...)",
    _REPLACED,
)
KERAS_2_MODEL = _row(
    "tensorflow:compat.v1.keras.Model class",
    "Keras' models in graphs of TensorFlow 1 are this library's, which train for the job.",
    also=("tensorflow:compat.v1.keras.models.Model",),
    only="outside of eager mode",
)
_TABLES_OF_KERAS_2 = {SOK_LAYERS: "Its dynamic tables get their gradients by rows."}
KERAS_2_APPLY_GRADIENTS = _row(
    _KERAS_2 + "optimizers.optimizer:Optimizer.apply_gradients(self, grads_and_vars, name=None, ...)",
    _TABLES_OF_KERAS_2,
)
KERAS_2_BUILD = _row(
    _KERAS_2 + "optimizers.optimizer:_BaseOptimizer.build(self, var_list)",
    {SOK_LAYERS: "Its dynamic tables get no slots, because they have their own."},
    subclasses=True,
)
KERAS_2_LEGACY_APPLY_GRADIENTS = _row(
    _KERAS_2 + "optimizers.legacy.optimizer_v2:OptimizerV2.apply_gradients"
    "(self, grads_and_vars, name=None, experimental_aggregate_gradients=True)",
    _TABLES_OF_KERAS_2,
)
KERAS_2_COUNTS = _rows(_KERAS_2 + "utils.layer_utils:", ("count_params", "weight_memory_size"), "(weights)", _COUNTED)
_KERAS_2_SCALES = _KERAS_2 + "mixed_precision.loss_scale_optimizer:LossScaleOptimizer"
KERAS_2_SCALED_APPLY = _rows(_KERAS_2_SCALES, ("", "V3"), ".apply_gradients(self, grads_and_vars, ...)", _SCALED)
KERAS_2_SCALED_INIT = _rows(_KERAS_2_SCALES, ("", "V3"), ".__init__(self, inner_optimizer, ...)", _SKIPS)
KERAS_2_CALLBACKS = _rows(
    _KERAS_2 + "callbacks:CallbackList.", _BATCHES, "(self, batch, logs=None)", _DISTRIBUTED_FILES
)

TABLE = tuple(_made)
