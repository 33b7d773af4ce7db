"""Lines of TensorFlow and Keras that the launcher recognizes in the workers' output.

Lines are recognized by the whole beginning of their text, never by a part of it: all other text passes unchanged.
"""

import re
import time
from collections.abc import Callable, Mapping

# A user who sets this asks for TensorFlow's lines, or for none.
_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
# From the worker's first line: on a busy machine TensorFlow needs a minute to be imported and to make a session.
START_UP_S = 120.0
_MOST_LINES = 100

# The source file and the message of each line, as in TensorFlow 2.15 to 2.21.
_START_UP = (
    rb"port\.cc:\d+\] oneDNN custom operations are on\.",
    rb"cpu_feature_guard\.cc:\d+\] This TensorFlow binary is optimized ",
    rb"cudart_stub\.cc:\d+\] Could not find cuda drivers on your machine, GPU will not be used\.",
    rb"cuda_(?:driver|platform)\.cc:\d+\] failed call to cuInit: ",
    rb"cuda_diagnostics\.cc:\d+\] ",
    rb"cuda_(?:fft|dnn|blas)\.cc:\d+\] Unable to register cu(?:FFT|DNN|BLAS) factory: ",
    rb"computation_placer\.cc:\d+\] computation placer already registered\.",
    rb"py_utils\.cc:\d+\] TF-TRT Warning: Could not find TensorRT",
    rb"mlir_graph_optimization_pass\.cc:\d+\] MLIR V1 optimization pass is not enabled",
)
# "I0000 00:00:1795475969.182574   19546 port.cc:153] ", or "2026-11-23 22:52:49.182574: I tensorflow/core/util/...] ".
_HEAD = rb"(?:[IWE]\d{4} \d\d:\d\d:[\d.]+ +\d+ |\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWE] (?:[\w.-]+/)*)"
_LINE = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR$"
    rb"|To enable the following instructions: .*, rebuild TensorFlow with the appropriate compiler flags\.$"
    rb"|" + _HEAD + rb"(?:" + rb"|".join(_START_UP) + rb")"
)
# TensorFlow logs the error of a step that it also raises. The message may have more lines, about nodes.
_REPEATED_ERROR = re.compile(_HEAD + rb"local_rendezvous\.cc:\d+\] Local rendezvous is aborting with status: ")
_NODE = re.compile(rb"\s*\[\[\{\{node ")
# A warning of a deprecated function that TensorFlow itself calls, here in adagrad.py:
#   WARNING:tensorflow:From /env/lib/python3.11/site-packages/tensorflow/python/training/adagrad.py:138: calling
#   Constant.__init__ (from ...) with dtype is deprecated and will be removed in a future version.
# Two lines follow it. A caller in the user's program is in another folder.
_DEPRECATED = re.compile(
    rb"WARNING:tensorflow:From \S+/site-packages/(?:tensorflow|tf_keras|tensorflow_estimator)/\S+\.py:\d+: .* "
    rb"(?:is|are) deprecated and will be removed (?:in a future version|after \S+)\.$"
)
_INSTRUCTIONS = b"Instructions for updating:"
_COLOURS = re.compile(rb"\x1b\[[0-9;]*m")
# Keras writes the states of its bar as lines where its output is not a terminal:
# " 3/10 ━━━━━━━━━━━━━━━━━━━━ 0s 4ms/step - loss: 1.2", " 3/10 [=====>....] - ETA: 0s", "     12/Unknown 1s 4ms/step".
_BAR = re.compile(r" *(\d+)/(?:(\d+) (?:(?:━){20} |\[[=>.]{20,}\])|Unknown (?:- )?\s*\d+(?:us|ms|s|:))".encode())


def holds_start_up_lines(environment: Mapping[str, str]) -> bool:
    """Returns whether TensorFlow's start-up lines are hidden: unless the user has chosen TensorFlow's log level."""
    return _LOG_LEVEL not in environment


class StartUpLines:
    """The lines that TensorFlow writes at every start of a worker, hidden until the worker fails.

    Held back at any time are lines that repeat the error of a step, and TensorFlow's warnings of deprecated functions
    that it calls itself.

    Args:
      clock: Seconds.

    Attributes:
      lines: The hidden lines.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._first_at: float | None = None
        self._repeats_error = False  # whether the last line did
        self._deprecation_lines = 0  # how many lines of the last warning are still to come
        self.lines: list[bytes] = []

    def holds(self, line: bytes) -> bool:
        """Returns whether this is such a line, for start-up lines in the first two minutes, and then keeps it."""
        self._first_at = self._clock() if self._first_at is None else self._first_at
        at_start = self._clock() - self._first_at <= START_UP_S
        self._repeats_error = bool(_REPEATED_ERROR.match(line) or (self._repeats_error and _NODE.match(line)))
        is_known = self._repeats_error or self._is_of_deprecation(line) or (at_start and _LINE.match(line))
        if len(self.lines) == _MOST_LINES or not is_known:
            return False
        self.lines.append(line)
        return True

    def _is_of_deprecation(self, line: bytes) -> bool:
        """Returns whether a line is one of the three of a warning: what, "Instructions for updating:", these."""
        if self._deprecation_lines == 2 and line.rstrip() != _INSTRUCTIONS:
            self._deprecation_lines = 0
        if self._deprecation_lines > 0:
            self._deprecation_lines -= 1
            return True
        self._deprecation_lines = 2 if _DEPRECATED.match(line.rstrip()) else 0
        return self._deprecation_lines > 0


def keras_step(line: bytes) -> tuple[int, bool] | None:
    """Returns the step that a line of Keras' progress bar shows, and whether it is the last; None for other lines."""
    found = _BAR.match(_COLOURS.sub(b"", line))
    return None if found is None else (int(found[1]), found[1] == found[2])
