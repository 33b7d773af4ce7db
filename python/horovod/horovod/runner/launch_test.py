import subprocess
import sys

import pytest

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

DEADLINE_S = 120
SHOW = "import os; print(os.environ['HOROVOD_RANK'], os.environ.get('HOROVOD_CYCLE_TIME'))"


def _run(module: str, *words: str, cwd=None) -> tuple[int, list[str], list[str]]:
    command = [sys.executable, "-m", module, *words]
    ended = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=DEADLINE_S)
    return ended.returncode, ended.stdout.splitlines(), ended.stderr.splitlines()


@pytest.mark.parametrize("module", ["horovod.runner", "horovod.runner.launch"])
def test_the_launcher_is_a_module_as_well(module):
    code, stdout, stderr = _run(module, "-np", "2", "-H", "localhost:2", sys.executable, "-c", SHOW)
    assert (code, sorted(stdout), stderr) == (0, ["[0]<stdout>:0 None", "[1]<stdout>:1 None"], [])
    assert _run(module, "-np", "2", "sh", "-c", "exit 7")[0] == 7


# Promise (horovod.md): a configuration file says the same as options, and the command line takes precedence.
def test_a_configuration_file_is_yaml(tmp_path):
    (tmp_path / "config.yaml").write_text("# ours\ncontroller: gloo\nparams:\n  cycle_time_ms: 2.5  # ms\n")
    options = ("-np", "1", "--config-file", "config.yaml", sys.executable, "-c", SHOW)
    assert _run("horovod.runner", *options, cwd=tmp_path) == (0, ["0 2.5"], [])
    (tmp_path / "config.yaml").write_text("params: [1\nx: {")
    code, _, stderr = _run("horovod.runner", *options, cwd=tmp_path)
    assert (code, len(stderr)) == (2, 1)
    assert stderr[0].startswith("horovodrun: --config-file config.yaml: while parsing")


def test_the_launcher_loads_neither_tensorflow_nor_what_it_does_not_need():
    code = (
        "import sys, horovod.runner.launch\n"
        "print([name for name in ('tensorflow', 'numpy', 'yaml', 'cloudpickle') if name in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True, timeout=DEADLINE_S) == "[]\n"
