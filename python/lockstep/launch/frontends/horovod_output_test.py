import os
import re
from collections import deque

import pytest

from lockstep.launch.base.output import Stream
from lockstep.launch.frontends.horovod_output import HorovodConsole

pytestmark = pytest.mark.newest_only  # no TensorFlow in it


# Promise (horovod.md): the help and the prefixes of lines are Horovod's.
@pytest.mark.parametrize("timestamps", [False, True])
def test_lines_begin_as_horovods(timestamps):
    pipes = [os.pipe(), os.pipe()]
    console = HorovodConsole(pipes[0][1], pipes[1][1], timestamps=timestamps)
    for fd in (console.stdout, console.stderr):
        Stream(console, fd, console.prefix("12", fd), True, deque()).feed(b"one\ntwo\n")
    for (reader, writer), name in zip(pipes, ("stdout", "stderr"), strict=True):
        os.close(writer)
        lines = os.fdopen(reader).read().splitlines()
        stamp = r"[A-Z][a-z]{2} [A-Z][a-z]{2} [ 0-9]\d \d\d:\d\d:\d\d \d{4}" if timestamps else ""
        assert len(lines) == 2
        for line, text in zip(lines, ("one", "two"), strict=True):
            assert re.fullmatch(rf"{stamp}\[12\]<{name}>:{text}", line), line
