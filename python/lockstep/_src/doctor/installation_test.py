import pytest

from lockstep._src.doctor.installation import installation, probe

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

FAKE = """
from unittest.mock import MagicMock
__version__, errors, test = "1.0", MagicMock(), MagicMock()
test.is_built_with_cuda = lambda: False
"""


@pytest.mark.parametrize(
    ("tensorflow", "states", "says"),
    [
        (FAKE, ["ok", "problem"], "built against TensorFlow"),
        (FAKE + "del errors", ["ok", "problem"], "AttributeError"),
        ("raise ImportError('libcudart is missing')", ["problem"], "libcudart is missing"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", ["problem"], "exit code -4: no message"),
    ],
)
def test_a_library_that_cannot_be_loaded_is_explained(tmp_path, monkeypatch, tensorflow, states, says):
    (tmp_path / "tensorflow.py").write_text(tensorflow)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    findings = installation(probe())
    assert [finding.state for finding in findings] == states
    assert says in findings[-1].seen and findings[-1].advice
