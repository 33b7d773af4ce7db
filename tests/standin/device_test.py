"""The stand-in device itself, and this library's operations on it: eager, in functions, in sessions and in Keras."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lockstep.testing.workers import call_workers
from tests.standin import plugin

pytestmark = pytest.mark.workers
tf1 = tf.compat.v1

_X = np.arange(12, dtype=np.float32).reshape(3, 4)
_IDS, _LABELS = np.arange(48) % 10, (np.arange(48) % 3).astype(np.float32)[:, None]


def _eager() -> dict[str, Any]:
    with tf.device("/gpu:0"):
        before = plugin.work()
        x = tf.constant(_X)
        product = tf.matmul(x, x, transpose_b=True)
        result = product.numpy()
        done = plugin.work() - before
        variable = tf.Variable(x)
        variable.assign_add(x)
    return {"product": (product.device, result), "work": done, "variable": (variable.device, variable.numpy())}


def _in_function() -> Any:
    @tf.function
    def chain(x: tf.Tensor) -> tf.Tensor:
        with tf.device("/gpu:0"):
            for _ in range(5):
                x = tf.matmul(x, tf.eye(4)) + 1.0
            return x

    return chain(tf.constant(_X)).numpy()


def _in_session() -> Any:
    with tf.Graph().as_default(), tf.device("/gpu:0"):
        x = tf1.placeholder(tf.float32, [3, 4])
        twice = tf.matmul(x, 2.0 * tf.eye(4))
        # An int32 is in the host's memory, also on a GPU.
        rows = tf.shape(twice)[0] + tf.size(x)
        with tf1.Session(config=tf1.ConfigProto(allow_soft_placement=False)) as session:
            return session.run([twice, rows], {x: _X})


def _ours() -> dict[str, Any]:
    import lockstep
    from lockstep._src.engine import library

    with tf.device("/gpu:0"):
        summed = lockstep.allreduce(tf.constant(_X) * 1.0)
        gathered = lockstep.allgather(tf.constant(_X) * 1.0)
        variable = tf.Variable(_X, name="held_by_gpu")
    try:
        library.ops.lockstep_read_rows(variable.handle, [1], dtype=tf.float32)
        refusal = ""
    except tf.errors.FailedPreconditionError as error:
        refusal = error.message
    return {"allreduce": summed.numpy(), "allgather": gathered.numpy(), "refusal": refusal}


def _placed_tables() -> dict[str, str]:
    """Returns the devices of tables, by the device that encloses them."""
    import hybridbackend.tensorflow as hb

    devices = {}
    for outer in ("", "/gpu:0", "/cpu:0"):
        with tf.Graph().as_default(), hb.scope(), tf.device(outer or None), hb.embedding_scope():
            devices[outer] = tf1.get_variable("table", [8, 4]).handle.device
    with tf.Graph().as_default(), hb.scope(), tf1.device(hb.train.device_setter()):
        with hb.embedding_scope():
            devices["setter"] = tf1.get_variable("table", [8, 4]).handle.device
        devices["dense"] = tf1.get_variable("dense", [8]).handle.device
    devices["setter's"] = hb.context.local_devices[0]
    return devices


def check_device() -> dict[str, Any]:
    plugin.load()
    return {
        "devices": len(tf.config.list_logical_devices("GPU")),
        "eager": _eager(),
        "function": _in_function(),
        "session": _in_session(),
        "ours": _ours(),
        "tables": _placed_tables(),
    }


def _check(done: dict[str, Any]) -> None:
    device, product = done["eager"]["product"]
    assert device.endswith("GPU:0")
    np.testing.assert_allclose(product, _X @ _X.T)
    # The value goes to the device once and the result comes back once.
    assert (done["eager"]["work"].to_device, done["eager"]["work"].to_host) == (1, 1)
    assert done["eager"]["work"].launches == 1
    device, value = done["eager"]["variable"]
    assert device.endswith("GPU:0")
    np.testing.assert_array_equal(value, 2 * _X)
    np.testing.assert_allclose(done["function"], _X + 5)
    np.testing.assert_array_equal(done["session"][0], 2 * _X)
    assert done["session"][1] == 3 + 12
    np.testing.assert_array_equal(done["ours"]["allreduce"], _X)
    np.testing.assert_array_equal(done["ours"]["allgather"], _X)
    assert "held_by_gpu" in done["ours"]["refusal"] and "GPU:0" in done["ours"]["refusal"]
    tables = done["tables"]
    assert all(tables[outer].endswith("CPU:0") for outer in ("", "/gpu:0", "/cpu:0", "setter")), tables
    assert tables["dense"] == tables["setter's"] and tables["dense"].endswith("GPU:0")


def test_computes_in_its_memory_and_keeps_the_order_of_streams():
    (done,) = call_workers(check_device, 1, timeout_s=120, environment=plugin.environment(devices=2))
    assert done["devices"] == 2
    _check(done)


def test_late_streams_change_no_result():
    (done,) = call_workers(check_device, 1, timeout_s=120, environment=plugin.environment(delay_us=500))
    assert done["devices"] == 1
    _check(done)


def _fitted(*, in_scope: bool, rank: int = 0, ranks: int = 1) -> tuple[list[np.ndarray], list[str]]:
    import contextlib

    import lockstep

    keras = tf.keras
    mine = np.arange(len(_IDS)).reshape(-1, ranks, 8 // ranks)[:, rank].ravel()
    initial = keras.initializers.Constant(np.linspace(-1, 1, 40).reshape(10, 4))
    with lockstep.scope() if in_scope else contextlib.nullcontext():
        embedding = keras.layers.Embedding(10, 4, initial)
        with lockstep.embedding_scope() if in_scope else contextlib.nullcontext():
            embedding.build(())
        layers = [
            keras.layers.Dense(n, a, kernel_initializer=keras.initializers.Constant(0.3))
            for n, a in ((3, "tanh"), (1, None))
        ]
        model = keras.Sequential([keras.Input((), dtype="int64"), embedding, *layers])
        model.compile(keras.optimizers.Adagrad(0.1), "mse", jit_compile=False)
        model.fit(_IDS[mine], _LABELS[mine], batch_size=8 // ranks, epochs=2, shuffle=False, verbose=0)
        rows = np.asarray(embedding(np.arange(10)))
        dense = [variable for layer in layers for variable in layer.weights]
        devices = [getattr(v, "value", v).device if hasattr(v, "path") else v.device for v in dense]
        return [rows, *(np.asarray(tf.convert_to_tensor(v)) for v in dense)], devices


def fit_in_scope() -> tuple[list[np.ndarray], list[str]]:
    plugin.load()
    import hybridbackend.tensorflow as hb

    return _fitted(in_scope=True, rank=hb.context.rank, ranks=hb.context.world_size)


def fit_plainly() -> tuple[list[np.ndarray], list[str]]:
    return _fitted(in_scope=False)


@pytest.mark.skipif(
    not getattr(tf.keras, "__version__", "2").startswith("3"), reason="TensorFlow before 2.16 has no Keras 3"
)
def test_keras_fits_a_table_beside_dense_layers_on_the_device():
    ((expected, _),) = call_workers(fit_plainly, 1, timeout_s=120)
    for values, devices in call_workers(fit_in_scope, 2, timeout_s=120, environment=plugin.environment()):
        for value, wanted in zip(values, expected, strict=True):
            np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)
        assert all(device.endswith("GPU:0") for device in devices)


def choose_a_device() -> dict[str, Any]:
    plugin.load()
    import horovod.tensorflow as hvd
    import hybridbackend.tensorflow as hb

    hvd.init()
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")
    mean = hvd.allreduce(tf.fill([3], float(hvd.rank())), op=hvd.Average)
    names = [device.name for device in tf.config.list_logical_devices("GPU")]
    return {"there": len(gpus), "names": names, "counted": hb.context.num_gpus, "mean": mean.numpy()}


# Promise (gpu.md): a worker chooses its GPU, and lets its memory grow, after `hvd.init()`.
def test_a_worker_chooses_its_device_after_it_has_joined_the_job():
    for done in call_workers(choose_a_device, 2, timeout_s=120, environment=plugin.environment(devices=2)):
        assert (done["there"], done["counted"], done["names"]) == (2, 1, ["/device:GPU:0"])
        np.testing.assert_array_equal(done["mean"], [0.5, 0.5, 0.5])


def choose_a_device_in_a_session() -> tuple[list[str], bool]:
    plugin.load()
    from tensorflow.python.eager import context

    import horovod.tensorflow as hvd

    hvd.init()
    with tf.Graph().as_default():
        variable = tf1.get_variable("variable", [2], initializer=tf1.zeros_initializer())
        tf1.train.Saver([variable])
        used = context.context()._context_handle is not None
        config = tf1.ConfigProto()
        config.gpu_options.visible_device_list = str(hvd.local_rank())
        with tf1.train.MonitoredTrainingSession("", config=config) as session:
            return session.run(variable).tolist(), used


# Promise (gpu.md): a session of TensorFlow 1 chooses its GPU by `visible_device_list`, after `hvd.init()` and savers.
def test_a_session_chooses_its_device_after_its_worker_has_joined_the_job():
    done = call_workers(choose_a_device_in_a_session, 2, timeout_s=120, environment=plugin.environment(devices=2))
    assert done == [([0.0, 0.0], False)] * 2
