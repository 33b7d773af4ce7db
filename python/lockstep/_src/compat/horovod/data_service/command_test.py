import signal

import pytest

from lockstep._src.compat.horovod.data_service import command, config
from lockstep._src.compat.horovod.data_service.errors import DataServiceError, TimeoutException


def test_the_command_line_reports_wrong_arguments(tmp_path, capsys):
    file = tmp_path / "compute.json"
    assert command.execute("compute_worker", [str(file), "--dispatchers", "2"]) == 2
    assert "compute_worker: Number of processes (1) must be a multiple" in capsys.readouterr().err
    assert command.execute("compute_worker", ["--timeout", "x", str(file)]) == 2
    assert "timeout is 'x'" in capsys.readouterr().err


def test_main_gets_the_arguments():
    got = []
    options = ["--dispatchers", "3", "--dispatcher-side", "training", "--timeout", "7"]
    assert command.execute("p", ["file", *options], main=lambda *arguments: got.append(arguments)) == 0
    assert command.execute("p", ["file"], main=lambda *arguments: got.append(arguments)) == 0
    assert got == [(3, "training", "file", 7), (1, "compute", "file", config.DEFAULT_TIMEOUT_S)]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError("wrong"), 2),
        (DataServiceError("failed"), 1),
        (TimeoutException("late"), 1),
        (OSError("no file"), 1),
    ],
)
def test_an_error_of_the_job_is_one_line_and_an_exit_code(error, code, capsys):
    def main(*_):
        raise error

    assert command.execute("program", ["file"], main=main) == code
    assert capsys.readouterr().err == f"program: {error}\n"


@pytest.mark.parametrize(("ended", "code"), [(KeyboardInterrupt(), 128 + signal.SIGINT), (SystemExit(143), 143)])
def test_a_signal_is_an_exit_code_without_a_message(ended, code, capsys):
    def main(*_):
        raise ended

    assert command.execute("program", ["file"], main=main) == code
    assert capsys.readouterr().err == ""
