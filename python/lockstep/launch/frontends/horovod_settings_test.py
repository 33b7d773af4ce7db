import json

import pytest

from lockstep.launch.base.errors import LaunchError
from lockstep.launch.cli.arguments import CommandLine
from lockstep.launch.frontends.horovod_settings import (
    SETTINGS,
    TABLE,
    add_settings,
    given_settings,
    read_config,
    stall_timeout_s,
    variables_of,
)
from lockstep.launch.placement.hosts import read_hostfile

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

# Options of the command line -> variables that programs find.
OPTIONS = {
    "--fusion-threshold-mb 32": {"HOROVOD_FUSION_THRESHOLD": "33554432"},
    "--fusion-threshold-mb 0": {"HOROVOD_FUSION_THRESHOLD": "0"},
    "--cycle-time-ms 3.5": {"HOROVOD_CYCLE_TIME": "3.5"},
    "--cycle-time-ms=10": {"HOROVOD_CYCLE_TIME": "10.0"},
    "--cache-capacity 2048": {"HOROVOD_CACHE_CAPACITY": "2048"},
    "--hierarchical-allreduce": {"HOROVOD_HIERARCHICAL_ALLREDUCE": "1"},
    "--no-hierarchical-allreduce": {"HOROVOD_HIERARCHICAL_ALLREDUCE": "0"},
    "--hierarchical-allgather": {"HOROVOD_HIERARCHICAL_ALLGATHER": "1"},
    "--no-hierarchical-allgather": {"HOROVOD_HIERARCHICAL_ALLGATHER": "0"},
    "--torus-allreduce": {"HOROVOD_TORUS_ALLREDUCE": "1"},
    "--no-torus-allreduce": {"HOROVOD_TORUS_ALLREDUCE": "0"},
    "--autotune": {"HOROVOD_AUTOTUNE": "1"},
    "--no-autotune": {"HOROVOD_AUTOTUNE": "0"},
    "--autotune --autotune-log-file log": {"HOROVOD_AUTOTUNE": "1", "HOROVOD_AUTOTUNE_LOG": "log"},
    "--autotune-log-file log": {},
    "--autotune --autotune-warmup-samples 5 --autotune-steps-per-sample 20 --autotune-bayes-opt-max-samples 40": {
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "5",
        "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "20",
        "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "40",
    },
    "--autotune --autotune-gaussian-process-noise 0.75": {
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE": "0.75",
    },
    "--timeline-filename t.json": {"HOROVOD_TIMELINE": "t.json"},
    "--timeline-filename t.json --timeline-mark-cycles": {
        "HOROVOD_TIMELINE": "t.json",
        "HOROVOD_TIMELINE_MARK_CYCLES": "1",
    },
    "--timeline-mark-cycles": {},
    "--no-timeline-mark-cycles": {},
    "--no-stall-check": {"HOROVOD_STALL_CHECK_DISABLE": "1"},
    "--stall-check": {"HOROVOD_STALL_CHECK_DISABLE": "0"},
    "--stall-check-warning-time-seconds 120": {"HOROVOD_STALL_CHECK_TIME_SECONDS": "120"},
    "--stall-check-shutdown-time-seconds 240": {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "240"},
    "--mpi-threads-disable": {"HOROVOD_MPI_THREADS_DISABLE": "1"},
    "--no-mpi-threads-disable": {"HOROVOD_MPI_THREADS_DISABLE": "0"},
    "--tcp": {"NCCL_IB_DISABLE": "1"},
    "--num-nccl-streams 2": {"HOROVOD_NUM_NCCL_STREAMS": "2"},
    "--thread-affinity 1": {"HOROVOD_THREAD_AFFINITY": "1"},
    "--gloo-timeout-seconds 60": {"HOROVOD_GLOO_TIMEOUT_SECONDS": "60"},
    "--log-level INFO": {"HOROVOD_LOG_LEVEL": "INFO"},
    "--log-with-timestamp": {"HOROVOD_LOG_HIDE_TIME": "0"},
    "--log-without-timestamp": {"HOROVOD_LOG_HIDE_TIME": "1"},
    "--log-hide-timestamp": {"HOROVOD_LOG_HIDE_TIME": "1"},
    "--no-log-hide-timestamp": {"HOROVOD_LOG_HIDE_TIME": "0"},
    "": {},
}

CONFIG = {
    "controller": "gloo",
    "params": {
        "fusion_threshold_mb": 32,
        "cycle_time_ms": 10,
        "cache_capacity": 2048,
        "hierarchical_allreduce": True,
        "hierarchical_allgather": False,
        "torus_allreduce": None,
    },
    "autotune": {"enabled": True, "log_file": "log.txt", "warmup_samples": 5, "gaussian_process_noise": 0.9},
    "timeline": {"filename": "t.json", "mark_cycles": True},
    "stall_check": {"enabled": True, "warning_time_seconds": 120, "shutdown_time_seconds": 240},
    "library_options": {"mpi_threads_disable": True, "num_nccl_streams": 2, "thread_affinity": 1},
    "logging": {"level": "INFO", "with_timestamp": False},
}


def _given(words: str) -> dict:
    line = CommandLine("horovodrun", "")
    add_settings(line, {title: line.group(title) for title in TABLE})
    return given_settings(line.parse([*words.split(), "prog"])[0])


def _write(tmp_path, text: str) -> str:
    (tmp_path / "config").write_text(text)
    return str(tmp_path / "config")


# Promise (horovod.md): options are exported as Horovod's variables, and values out of range are refused.
@pytest.mark.parametrize("words", OPTIONS)
def test_an_option_is_exported_as_horovods_variable(words):
    assert variables_of(_given(words)) == OPTIONS[words]


def test_every_setting_is_tried():
    tried = {name for variables in OPTIONS.values() for name in variables}
    assert tried == {setting.variable for setting in SETTINGS.values()}


# Promise (horovod.md): options are exported as Horovod's variables, and values out of range are refused.
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--fusion-threshold-mb -1", "params.fusion_threshold_mb: got -1, wanted 0 or more"),
        ("--cycle-time-ms nan", "params.cycle_time_ms: got nan, wanted 0 or more"),
        (
            "--autotune-gaussian-process-noise 2",
            "autotune.gaussian_process_noise: got 2.0, wanted 0 or more, at most 1",
        ),
        ("--log-level LOUD", "logging.level: got 'LOUD', wanted one of TRACE, DEBUG, INFO, WARNING, ERROR, FATAL"),
    ],
)
def test_a_value_out_of_range_is_refused(words, message):
    with pytest.raises(LaunchError) as refused:
        _given(words)
    assert str(refused.value) == message


@pytest.mark.parametrize("words", ["--autotune --no-autotune", "--log-with-timestamp --log-hide-timestamp"])
def test_yes_and_no_exclude_each_other(words, capsys):
    with pytest.raises(SystemExit) as end:
        _given(words)
    assert end.value.code == 2
    assert "not allowed with argument" in capsys.readouterr().err


# Promise (horovod.md): a configuration file says the same as options, and the command line takes precedence.
def test_a_configuration_file_says_the_same_as_options(tmp_path):
    settings, controller, unknown = read_config(_write(tmp_path, json.dumps(CONFIG)), json.loads)
    assert (controller, unknown) == ("gloo", [])
    assert variables_of(settings) == {
        "HOROVOD_FUSION_THRESHOLD": str(32 << 20),
        "HOROVOD_CYCLE_TIME": "10.0",
        "HOROVOD_CACHE_CAPACITY": "2048",
        "HOROVOD_HIERARCHICAL_ALLREDUCE": "1",
        "HOROVOD_HIERARCHICAL_ALLGATHER": "0",
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_AUTOTUNE_LOG": "log.txt",
        "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "5",
        "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE": "0.9",
        "HOROVOD_TIMELINE": "t.json",
        "HOROVOD_TIMELINE_MARK_CYCLES": "1",
        "HOROVOD_STALL_CHECK_DISABLE": "0",
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "120",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "240",
        "HOROVOD_MPI_THREADS_DISABLE": "1",
        "HOROVOD_NUM_NCCL_STREAMS": "2",
        "HOROVOD_THREAD_AFFINITY": "1",
        "HOROVOD_LOG_LEVEL": "INFO",
        "HOROVOD_LOG_HIDE_TIME": "1",
    }


def test_keys_of_a_configuration_file_that_mean_nothing_are_listed(tmp_path):
    text = json.dumps({"logging": {"hide_timestamp": True, "level": "INFO"}, "params": {"cycle": 1}, "tcp": True})
    settings, _, unknown = read_config(_write(tmp_path, text), json.loads)
    assert (settings, unknown) == ({"logging.level": "INFO"}, ["logging.hide_timestamp", "params.cycle", "tcp"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "--config-file .*config: Expecting"),
        ("[1]", "wanted sections such as `params:`"),
        ('{"params": {"cache_capacity": "many"}}', "params.cache_capacity: got 'many', wanted an integer"),
        ('{"params": {"cache_capacity": true}}', "params.cache_capacity: got True, wanted an integer"),
        ('{"autotune": {"enabled": 1}}', "autotune.enabled: got 1, wanted true or false"),
        ('{"params": {"cycle_time_ms": -0.5}}', "params.cycle_time_ms: got -0.5, wanted 0 or more"),
    ],
)
def test_a_configuration_file_that_is_wrong_is_refused(tmp_path, text, message):
    with pytest.raises(LaunchError, match=message):
        read_config(_write(tmp_path, text), json.loads)


def test_a_configuration_file_that_is_not_there_is_refused():
    with pytest.raises(LaunchError, match="--config-file /nowhere: No such file"):
        read_config("/nowhere", json.loads)


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        ("", None),
        ("--stall-check-shutdown-time-seconds 0", None),
        ("--stall-check-shutdown-time-seconds 60", None),
        ("--stall-check-shutdown-time-seconds 61", 61),
        ("--stall-check-shutdown-time-seconds 5 --stall-check-warning-time-seconds 2", 5),
        ("--stall-check-shutdown-time-seconds 90 --no-stall-check", None),
    ],
)
def test_a_stalled_job_ends_when_horovods_would(words, seconds):
    assert stall_timeout_s(_given(words), {}) == seconds


@pytest.mark.parametrize("reads", [read_hostfile, lambda path: read_config(path, lambda text: {})])
def test_a_file_without_an_end_or_of_enormous_size_is_refused(tmp_path, reads):
    with pytest.raises(LaunchError, match="/dev/zero: it is a device, wanted a file or a pipe"):
        reads("/dev/zero")
    (tmp_path / "large").write_bytes(b"#" * (1 << 20) + b"\n")
    with pytest.raises(LaunchError, match="large: it has more than 1048576 bytes"):
        reads(str(tmp_path / "large"))
