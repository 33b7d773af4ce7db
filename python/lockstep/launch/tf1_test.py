"""Programs written for TensorFlow 1, run through the launcher on the TensorFlow that is installed."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

DEADLINE_S = 180

PROGRAM = """
from __future__ import print_function
import sys
import tensorflow as tf
import tensorflow.python.client.timeline as timeline_module
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.client import timeline
from tensorflow import train
import helper
from package import model

def ask_late():
  import tensorflow
  return tensorflow.placeholder

inputs = tf.placeholder(tf.float32, [None, 3], name='inputs')
labels = tf.placeholder(tf.float32, [None, 1])
with tf.variable_scope('dense'):
  weights = tf.get_variable('weights', [3, 1], initializer=tf.zeros_initializer())
loss = tf.losses.mean_squared_error(labels, model.predict(inputs, weights))
step = tf.train.get_or_create_global_step()
train_op = train.GradientDescentOptimizer(0.1).minimize(tf.losses.get_total_loss(), global_step=step)
losses = []
options = config_pb2.RunOptions(trace_level=config_pb2.RunOptions.FULL_TRACE)
metadata = tf.RunMetadata()
with tf.train.MonitoredTrainingSession(hooks=[tf.train.StopAtStepHook(last_step=3)]) as session:
  while not session.should_stop():
    value, _ = session.run([loss, train_op], {inputs: [[1., 0., 0.]], labels: [[1.]]}, options, metadata)
    losses.append(round(float(value), 4))
print('losses', losses)
print('trace', len(timeline.Timeline(metadata.step_stats).generate_chrome_trace_format()) > 0)
print('names', ask_late() is tf.placeholder, helper.placeholder() is tf.placeholder, timeline_module is timeline)
print('arguments', sys.argv, __name__, __file__)
tf.logging.set_verbosity(tf.logging.ERROR)
print('level', tf.logging.get_verbosity() == tf.logging.ERROR)
import modern
print('library', modern.has_function, modern.has_placeholder)
try:
  tf.contrib
except AttributeError as error:
  print('contrib', error)
try:
  from tensorflow.contrib.layers.python.layers import feature_column
except ImportError as error:
  print('module', error)
"""


@pytest.fixture
def project(tmp_path):
    """Returns a folder with a program, a module and a package that only know TensorFlow 1."""
    (tmp_path / "main.py").write_text(PROGRAM)
    (tmp_path / "helper.py").write_text("import tensorflow as tf\ndef placeholder():\n  return tf.placeholder\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__init__.py").write_text("")
    (tmp_path / "package/model.py").write_text(
        "def predict(inputs, weights):\n  from tensorflow import matmul, log\n  return matmul(inputs, weights)\n"
    )
    (tmp_path / "package/__main__.py").write_text(
        "import sys, tensorflow as tf\nfrom .model import predict\nprint(tf.placeholder, __package__, sys.argv[1:])\n"
        "from tensorflow import *\nsys.stdout.write(str(get_variable))\n"
    )
    library = tmp_path / "lib/site-packages"
    library.mkdir(parents=True)
    (library / "modern.py").write_text(
        "import tensorflow as tf\nhas_function, has_placeholder = hasattr(tf, 'function'), hasattr(tf, 'placeholder')\n"
    )
    return tmp_path


def _path(folder: Path) -> str:
    """Returns PYTHONPATH with one more folder."""
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


def _run(folder: Path, *words: str, check=True, **variables: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "", **variables}
    return subprocess.run(
        [sys.executable, "-m", "lockstep.launch", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=check,
    )


def test_a_program_of_tensorflow_1_runs_as_it_was_written(project):
    main = str(project / "main.py")
    run = _run(
        project.parent, "--tf1", sys.executable, main, "--steps", "3", PYTHONPATH=_path(project / "lib/site-packages")
    )
    lines = dict(line.split(" ", 1) for line in run.stdout.splitlines())
    # (1 - w)^2 with w = 0, then w += 0.2 (1 - w).
    assert lines["losses"] == "[1.0, 0.64, 0.4096]"
    assert lines["trace"] == "True"
    assert lines["names"] == "True True True"
    assert lines["arguments"] == f"{[main, '--steps', '3']} __main__ {main}"
    assert lines["level"] == "True"
    assert lines["library"] == "True False"
    assert "has no attribute 'contrib'" in lines["contrib"]
    for text in (lines["contrib"], lines["module"]):
        assert "gone from TensorFlow; of its parts, feature columns" in text
    assert "WARNING:tensorflow" not in run.stderr


def test_a_package_that_is_run_by_the_variable(project):
    run = _run(project, sys.executable, "-um", "package", "x", LOCKSTEP_TF1="1")
    first, second = run.stdout.splitlines()
    assert "function placeholder" in first and "package ['x']" in first
    assert "function get_variable" in second


@pytest.mark.skipif(
    importlib.util.find_spec("tf_keras") is None and importlib.util.find_spec("tensorflow_estimator") is None,
    reason="needs Keras 2: tf_keras, or the TensorFlow that brings it",
)
def test_layers_of_keras_2_work(project):
    code = "import tensorflow as tf; print(tf.layers.dense(tf.placeholder(tf.float32, [None, 3]), 5).shape)"
    assert _run(project, "--tf1", sys.executable, "-c", code).stdout == "(?, 5)\n"


def test_estimators_are_there_in_every_tensorflow(project):
    code = (
        "import tensorflow as tf; e = tf.estimator; keys = e.ModeKeys; spec = e.TrainSpec(lambda: 1, max_steps=3)\n"
        "receiver = e.export.ServingInputReceiver({}, {'x': tf.placeholder(tf.int64, name='x')})\n"
        "print(keys.TRAIN, keys.EVAL, keys.PREDICT, spec.max_steps, e.EvalSpec(lambda: 1).steps, receiver.features)"
    )
    assert _run(project, "--tf1", sys.executable, "-c", code).stdout == "train eval infer 3 100 {}\n"


# Promise (deeprec.md): DeepRec's names are in `tf`, only in programs with `--tf1`.
def test_names_of_deeprec_are_in_tensorflows_namespaces(project):
    code = (
        "import tensorflow as tf\n"
        "from tensorflow.feature_column import categorical_column_with_embedding as c, numeric_column\n"
        "from tensorflow import nn, get_embedding_variable\n"
        "print(tf.feature_column.embedding_column(c('x', tf.int64), 2).name, numeric_column('y').name)\n"
        "print(nn.group_embedding_lookup.__name__, nn is tf.nn, nn.relu is not None, 'relu' in dir(nn))\n"
        "print(tf.EmbeddingVariableOption(filter_option=tf.CounterFilter(3)).filter_option.filter_freq)\n"
        "import modern\nprint(modern.has_placeholder)\n"
        "import importlib\nprint(hasattr(importlib.import_module('tensorflow').nn, 'group_embedding_lookup'))"
    )
    run = _run(project, "--tf1", sys.executable, "-c", code, PYTHONPATH=_path(project / "lib/site-packages"))
    wanted = ["x_embedding y", "group_embedding_lookup True True True", "3", "False", "False"]
    assert run.stdout.splitlines() == wanted


def test_errors_of_the_program_are_its_own(project):
    (project / "main.py").write_text("import sys\nsys.exit(9)\n")
    assert _run(project, "--tf1", sys.executable, "main.py", check=False).returncode == 9
    (project / "main.py").write_text("raise ValueError('mine')\n")
    run = _run(project, "--tf1", sys.executable, "main.py", check=False)
    assert run.returncode == 1
    assert run.stderr.endswith("ValueError: mine\n")


def test_a_program_that_is_not_there_is_one_line(project):
    run = _run(project, "--tf1", sys.executable, "absent.py", check=False)
    assert (run.returncode, run.stderr) == (1, "lockstep.launch.tf1: no script 'absent.py'\n")


def test_a_module_outside_of_the_programs_folder_that_wants_tensorflow_1_is_explained(tmp_path):
    for folder in ("program", "elsewhere"):
        (tmp_path / folder).mkdir()
    (tmp_path / "program/main.py").write_text("import outside\noutside.build()\n")
    outside = tmp_path / "elsewhere/outside.py"
    outside.write_text("import tensorflow as tf\ndef build():\n  return tf.placeholder(tf.float32)\n")
    path = _path(tmp_path / "elsewhere")
    run = _run(tmp_path / "program", "--tf1", sys.executable, "main.py", check=False, PYTHONPATH=path)
    assert run.returncode == 1
    last = run.stderr.splitlines()[-1]
    assert last.startswith(f"lockstep: under --tf1 the modules below {tmp_path / 'program'} see TensorFlow 1"), last
    assert f"{outside} is not one of them" in last and "has no tf.placeholder" in last
    # The message's advice works.
    _run(tmp_path, "--tf1", sys.executable, "program/main.py", PYTHONPATH=path)
