import subprocess
import sys

import pytest

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

PROGRAM = """
import sys
from lockstep.launch.base.printing import print_text
for number in range(1000):
  print_text(str(number) * 100)
print("end", file=sys.stderr)
"""


def test_a_program_goes_on_without_its_reader():
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"0" * 100 + b"\n"
        process.stdout.close()
        assert process.stderr.read() == b"end\n"
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.stderr.close()


def test_a_reader_gets_the_text():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == [str(number) * 100 for number in range(1000)]
