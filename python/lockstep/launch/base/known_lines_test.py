import pytest

from lockstep.launch.base.known_lines import START_UP_S, StartUpLines, holds_start_up_lines, keras_step

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

# As TensorFlow 2.21 and 2.15 have written them.
START_UP = b"""\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795475969.182574   19546 port.cc:153] oneDNN custom operations are on. You may see slightly different
I0000 00:00:1795475969.203286   9 cudart_stub.cc:31] Could not find cuda drivers on your machine, GPU will not be used.
I0000 00:00:1795475969.548352   19546 cpu_feature_guard.cc:227] This TensorFlow binary is optimized to use available CPU
To enable the following instructions: FMA, in other operations, rebuild TensorFlow with the appropriate compiler flags.
E0000 00:00:1795475976.732520   19546 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error: Failed call to
I0000 00:00:1795475976.969535   19546 mlir_graph_optimization_pass.cc:437] MLIR V1 optimization pass is not enabled
2026-11-23 22:52:49.182574: I tensorflow/core/util/port.cc:113] oneDNN custom operations are on. You may see slightly
2026-11-23 22:52:49.182574: E local_xla/stream_executor/cuda/cuda_dnn.cc:9261] Unable to register cuDNN factory: A
2026-11-23 22:52:49.182574: W tensorflow/tf2tensorrt/utils/py_utils.cc:38] TF-TRT Warning: Could not find TensorRT
""".splitlines()


def test_tensorflows_lines_are_held_back_at_the_start():
    start_up = StartUpLines()
    assert all(start_up.holds(line) for line in START_UP)
    assert start_up.lines == START_UP


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"step 1",
        b"epoch 3: " + START_UP[1],
        b"I0000 00:00:1795475969.182574   19546 port.cc:153] oneDNN has failed",
        b"I0000 00:00:1795475969.182574   19546 other.cc:153] oneDNN custom operations are on.",
        b"E0000 00:00:1795475976.732520   19546 gpu_device.cc:2340] Cannot dlopen some GPU libraries.",
        b"2026-11-23 22:52:49.182574: F tensorflow/core/util/port.cc:113] oneDNN custom operations are on.",
        b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR?",
    ],
)
def test_other_lines_are_never_held_back(line):
    assert not StartUpLines().holds(line)


def test_lines_are_not_held_back_later_nor_without_limit():
    now = [5.0]
    start_up = StartUpLines(lambda: now[0])
    assert [start_up.holds(START_UP[0]) for _ in range(101)] == [True] * 100 + [False]
    start_up = StartUpLines(lambda: now[0])
    assert not start_up.holds(b"the first line")
    now[0] += START_UP_S
    assert start_up.holds(START_UP[0])
    now[0] += 1
    assert not start_up.holds(START_UP[0])


def test_a_repeated_error_is_held_back_at_any_time_with_its_nodes():
    now = [5.0]
    lines = StartUpLines(lambda: now[0])
    assert not lines.holds(b"the first line")
    now[0] += START_UP_S + 1
    error = b"W0000 00:00:1795475976.732520   19546 local_rendezvous.cc:412] Local rendezvous is aborting with status: "
    node = b"\t [[{{node gradients/x}}]]"
    assert [lines.holds(line) for line in (error + b"CANCELLED: y", node, node, b"loss 1", node)] == [True] * 3 + [
        False
    ] * 2
    old = (
        b"2026-11-23 22:52:49.182574: W tensorflow/core/framework/local_rendezvous.cc:404] Local rendezvous is aborting"
    )
    assert lines.holds(old + b" with status: OUT_OF_RANGE: End of sequence")
    assert not lines.holds(b"epoch 3: " + error)


def test_warnings_of_functions_that_tensorflow_itself_calls_are_held_and_those_of_a_program_pass():
    folder = b"/env/lib/python3.11/site-packages/tensorflow/python"
    calling = (
        b"calling Constant.__init__ (from tensorflow.python.ops.init_ops) with dtype is deprecated and will be removed"
    )
    warning = b"WARNING:tensorflow:From %s/training/adagrad.py:138: %s in a future version." % (folder, calling)
    how, call = b"Instructions for updating:", b"Call initializer instance with the dtype argument"
    lines = StartUpLines()
    for line in (warning, how, call, warning, how, call):
        assert lines.holds(line)
    for line in (call, how, b"loss 1", warning.replace(folder, b"/home/user"), how, call):
        assert not lines.holds(line)
    assert [lines.holds(line) for line in (warning, b"loss 1", how, call)] == [True, False, False, False]


@pytest.mark.parametrize(("variables", "holds"), [({}, True), ({"TF_CPP_MIN_LOG_LEVEL": "0"}, False)])
def test_a_user_who_chooses_tensorflows_log_level_gets_it(variables, holds):
    assert holds_start_up_lines(variables) == holds


@pytest.mark.parametrize(
    ("line", "step"),
    [
        (
            "\x1b[1m 3/10\x1b[0m \x1b[32m━━━━━━\x1b[0m\x1b[37m━━━━━━━━━━━━━━\x1b[0m 0s 4ms/step - loss: 1.2",
            (3, False),
        ),
        (
            "\x1b[1m10/10\x1b[0m \x1b[32m━━━━━━━━━━━━━━━━━━━━\x1b[0m\x1b[37m\x1b[0m \x1b[1m0s\x1b[0m 4ms/step",
            (10, True),
        ),
        (" 3/10 [========>.....................] - ETA: 0s - loss: 1.2", (3, False)),
        ("10/10 [==============================] - 1s 4ms/step", (10, True)),
        ("     12/Unknown \x1b[1m1s\x1b[0m 4ms/step", (12, False)),
        ("3/10", None),
        ("3/10 of all", None),
        ("epoch 3/10 ━━━━━━━━━━━━━━━━━━━━ 0s", None),
    ],
)
def test_lines_of_keras_bars_are_recognized(line, step):
    assert keras_step(line.encode()) == step
