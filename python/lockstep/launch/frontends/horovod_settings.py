"""Horovod's settings: options of `horovodrun`, keys of its configuration file, and environment variables.

A table has an entry for each. Programs find the values in environment variables with Horovod's names. Most settings
tune parts of Horovod that this engine does not have, as their help says. Sources: Horovod's documentation
(`docs/autotune.rst`, `tensor-fusion.rst`, `timeline.rst`, `mpi.rst`) and the help of its `horovodrun`.
"""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lockstep.launch.base.errors import LaunchError
from lockstep.launch.base.seconds import seconds_of
from lockstep.launch.base.small_files import read_small
from lockstep.launch.cli.arguments import CommandLine

# Returns the contents of a YAML text.
ReadYaml = Callable[[str], Any]


@dataclass(frozen=True)
class Setting:
    """A value that programs find in an environment variable.

    Attributes:
      key: Its place in the configuration file, `section.name`; also its key among settings.
      variable: The environment variable.
      kind: The type of its value: bool, int, float or str.
      on: The spellings of its option.
      off: For bool, the spellings of the option that disables it.
      help: Its meaning on this engine. If it is empty, the help does not show the option, as Horovod's does not.
      off_help: The same for the option that disables it.
      scale: The factor between the value and the variable's number.
      negated: Whether the variable has the opposite of the value.
      needs: The key of a setting without which this one has no effect.
      choices: The valid values, if they are limited.
      most: The largest value, if there is one; the smallest number is 0.
    """

    key: str
    variable: str
    kind: type
    on: tuple[str, ...]
    help: str
    off: tuple[str, ...] = ()
    off_help: str = ""
    scale: int = 1
    negated: bool = False
    needs: str = ""
    choices: tuple[str, ...] = ()
    most: float | None = None

    def checked(self, value: Any) -> Any:
        """Returns a valid value, converted to the setting's type.

        Raises:
          LaunchError: it has another type, or is out of range.
        """
        wanted = {bool: "true or false", int: "an integer", float: "a number", str: "text"}[self.kind]
        if self.kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if type(value) is not self.kind:
            raise LaunchError(f"{self.key}: got {value!r}, wanted {wanted}")
        if self.choices and value not in self.choices:
            raise LaunchError(f"{self.key}: got {value!r}, wanted one of {', '.join(self.choices)}")
        if isinstance(value, (int, float)) and not 0 <= value <= (value if self.most is None else self.most):
            raise LaunchError(
                f"{self.key}: got {value}, wanted 0 or more" + (f", at most {self.most:g}" if self.most else "")
            )
        return value

    def text(self, value: Any) -> str:
        """Returns the variable's text for a value."""
        if self.kind is bool:
            return str(int(value != self.negated))
        return str(value * self.scale) if self.kind is int else str(value)


_ALGORITHM = "nothing to tune here: the engine chooses its algorithms"
_AUTOTUNE = "there is nothing to tune"

# Heading of Horovod's help -> its settings.
TABLE: Mapping[str, tuple[Setting, ...]] = {
    "tuneable parameter arguments": (
        Setting(
            "params.fusion_threshold_mb", "HOROVOD_FUSION_THRESHOLD", int, ("--fusion-threshold-mb",),
            "the largest buffer in which tensors that are ready together are sent; 0: no fusion; the variable is in "
            "bytes (default: 64)",
            scale=1 << 20,
        ),
        Setting(
            "params.cycle_time_ms", "HOROVOD_CYCLE_TIME", float, ("--cycle-time-ms",),
            "nothing to tune here: without cycles, ready tensors are exchanged at once",
        ),
        Setting(
            "params.cache_capacity", "HOROVOD_CACHE_CAPACITY", int, ("--cache-capacity",),
            "nothing to tune here",
        ),
        *(
            Setting(
                f"params.{name}", f"HOROVOD_{name.upper()}", bool, (f"--{name.replace('_', '-')}",), _ALGORITHM,
                off=(f"--no-{name.replace('_', '-')}",), off_help="no effect either",
            )
            for name in ("hierarchical_allreduce", "hierarchical_allgather", "torus_allreduce")
        ),
    ),
    "autotune arguments": (
        Setting(
            "autotune.enabled", "HOROVOD_AUTOTUNE", bool, ("--autotune",), f"{_AUTOTUNE}: no trials are made",
            off=("--no-autotune",),
        ),
        Setting(
            "autotune.log_file", "HOROVOD_AUTOTUNE_LOG", str, ("--autotune-log-file",),
            f"{_AUTOTUNE}: no log is written", needs="autotune.enabled",
        ),
        *(
            Setting(
                f"autotune.{name}", f"HOROVOD_AUTOTUNE_{name.upper()}", int, (f"--autotune-{name.replace('_', '-')}",),
                _AUTOTUNE, needs="autotune.enabled",
            )
            for name in ("warmup_samples", "steps_per_sample", "bayes_opt_max_samples")
        ),
        Setting(
            "autotune.gaussian_process_noise", "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE", float,
            ("--autotune-gaussian-process-noise",), _AUTOTUNE, needs="autotune.enabled", most=1,
        ),
    ),
    "timeline arguments": (
        Setting(
            "timeline.filename", "HOROVOD_TIMELINE", str, ("--timeline-filename",),
            "rank 0 writes the phases of each tensor there, for chrome://tracing; DYNAMIC: starts with "
            "hvd.start_timeline",
        ),
        Setting(
            "timeline.mark_cycles", "HOROVOD_TIMELINE_MARK_CYCLES", bool, ("--timeline-mark-cycles",),
            "marks the times at which rank 0 put tensors into the common order", off=("--no-timeline-mark-cycles",),
            needs="timeline.filename",
        ),
    ),
    "stall check arguments": (
        Setting(
            "stall_check.enabled", "HOROVOD_STALL_CHECK_DISABLE", bool, ("--stall-check",),
            "", off=("--no-stall-check",), negated=True,
            off_help="no warnings of tensors that some ranks do not ask for; a rank that hangs in an exchange ends the "
            "job after LOCKSTEP_STALL_TIMEOUT seconds (300) in any case",
        ),
        Setting(
            "stall_check.warning_time_seconds", "HOROVOD_STALL_CHECK_TIME_SECONDS", int,
            ("--stall-check-warning-time-seconds",),
            "rank 0 repeatedly names the ranks that did not ask for a tensor after so long; 0: never (default: 60)",
        ),
        Setting(
            "stall_check.shutdown_time_seconds", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", int,
            ("--stall-check-shutdown-time-seconds",),
            "such a tensor fails after so long, and a job whose rank hangs ends; as in Horovod, only if longer than "
            "the warning's time (default: 0, never; a job whose rank hangs ends after 300 s)",
        ),
    ),
    "library arguments": (
        Setting(
            "library_options.mpi_threads_disable", "HOROVOD_MPI_THREADS_DISABLE", bool, ("--mpi-threads-disable",),
            "MPI is not used", off=("--no-mpi-threads-disable",),
        ),
        Setting("tcp", "NCCL_IB_DISABLE", bool, ("--tcp",), "no InfiniBand for NCCL, if the program uses it"),
        Setting(
            "library_options.num_nccl_streams", "HOROVOD_NUM_NCCL_STREAMS", int, ("--num-nccl-streams",),
            "NCCL is not used",
        ),
        Setting(
            "library_options.thread_affinity", "HOROVOD_THREAD_AFFINITY", int, ("--thread-affinity",),
            "the engine's thread runs on the worker's processors",
        ),
        Setting(
            "library_options.gloo_timeout_seconds", "HOROVOD_GLOO_TIMEOUT_SECONDS", int, ("--gloo-timeout-seconds",),
            "Gloo is not used",
        ),
    ),
    "logging arguments": (
        Setting(
            "logging.level", "HOROVOD_LOG_LEVEL", str, ("--log-level",), "the engine keeps no log",
            choices=("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL"),
        ),
        Setting(
            "logging.with_timestamp", "HOROVOD_LOG_HIDE_TIME", bool,
            ("--log-with-timestamp", "--no-log-hide-timestamp"), "",
            off=("--log-without-timestamp", "--log-hide-timestamp"), negated=True,
            off_help="the engine keeps no log; for lines of output, see -prefix-timestamp",
        ),
    ),
}  # fmt: skip
SETTINGS: Mapping[str, Setting] = {setting.key: setting for group in TABLE.values() for setting in group}
# Horovod's default for the time from a stall to its warning.
_STALL_WARNING_S = 60
# The texts in variables that mean yes and no.
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def add_settings(line: CommandLine, groups: Mapping[str, Any]) -> None:
    """Adds the options; `given_settings` reads them.

    Args:
      line: The command line.
      groups: title -> group of its help.
    """
    for title, settings in TABLE.items():
        for setting in settings:
            if setting.kind is bool:
                _add_switch(line, setting, groups[title].add_mutually_exclusive_group())
                continue
            name = setting.on[0].lstrip("-").replace("-", "_").upper()
            shown = f"{{{','.join(setting.choices)}}}" if setting.choices else name
            details = {"dest": setting.key, "type": setting.kind, "metavar": shown, "help": setting.help}
            line.add(*setting.on, to=groups[title], **details)


def _add_switch(line: CommandLine, setting: Setting, choice: Any) -> None:
    """Adds the options that enable and disable a setting; the help shows the first spelling of a side with a help."""
    for names, value, help in ((setting.on, "true", setting.help), (setting.off, "false", setting.off_help)):
        for i, name in enumerate(names):
            shown = help if help and i == 0 else argparse.SUPPRESS
            line.add(name, to=choice, dest=setting.key, action=f"store_{value}", default=None, help=shown)


def given_settings(options: Any) -> dict[str, Any]:
    """Returns the settings that were given as options, and checks them.

    Raises:
      LaunchError: a value is out of range.
    """
    values = {key: getattr(options, key) for key in SETTINGS}
    return {key: SETTINGS[key].checked(value) for key, value in values.items() if value is not None}


def read_config(path: str, read_yaml: ReadYaml) -> tuple[dict[str, Any], str, list[str]]:
    """Reads a configuration file: sections of settings, and the controller.

    Returns:
      (settings by key, the controller or "", keys that are not known).

    Raises:
      LaunchError: the file cannot be read, is not a configuration file, or has a wrong value.
    """
    try:
        config = read_yaml(read_small(path).decode())
    except (OSError, ValueError) as error:
        raise LaunchError(f"--config-file {path}: {getattr(error, 'strerror', None) or error}") from None
    if not isinstance(config or {}, dict):
        raise LaunchError(f"--config-file {path}: got {config!r}, wanted sections such as `params:`")
    settings, controller, unknown = {}, "", []
    for section, content in (config or {}).items():
        if section == "controller":
            controller = str(content or "").lower()
            continue
        for name, value in (content if isinstance(content, dict) else {"": content}).items():
            key = f"{section}.{name}" if name else str(section)
            if key not in SETTINGS or "." not in key:
                unknown.append(key)
            elif value is not None:
                settings[key] = SETTINGS[key].checked(value)
    return settings, controller, unknown


def variables_of(settings: Mapping[str, Any]) -> dict[str, str]:
    """Returns the environment variables for these settings."""
    return {
        SETTINGS[key].variable: SETTINGS[key].text(value)
        for key, value in settings.items()
        if not SETTINGS[key].needs or settings.get(SETTINGS[key].needs)
    }


def stall_timeout_s(settings: Mapping[str, Any], environment: Mapping[str, str]) -> float | None:
    """Returns after how long the engine should end a job whose rank is late; None for the engine's own limit.

    Args:
      settings: The settings that were given.
      environment: The launcher's environment variables. Horovod's variables count for settings that were not given, as
        in each process. The engine's own variable there overrides them.

    Raises:
      LaunchError: a variable is not a number.
    """
    key = "stall_check.shutdown_time_seconds"
    if key not in settings and environment.get("LOCKSTEP_STALL_TIMEOUT"):
        return None
    shutdown = _seconds(settings, key, environment, 0)
    warning = _seconds(settings, "stall_check.warning_time_seconds", environment, _STALL_WARNING_S)
    return shutdown if _is_stall_check_on(settings, environment) and shutdown > warning else None


def _seconds(settings: Mapping[str, Any], key: str, environment: Mapping[str, str], default: float) -> float:
    variable = SETTINGS[key].variable
    if key in settings or not environment.get(variable):
        return settings.get(key, default)
    value = seconds_of(environment, variable, default)
    return int(value) if value.is_integer() else value


def _is_stall_check_on(settings: Mapping[str, Any], environment: Mapping[str, str]) -> bool:
    variable = SETTINGS["stall_check.enabled"].variable
    text = environment.get(variable, "")
    if "stall_check.enabled" in settings or not text:
        return settings.get("stall_check.enabled", True)
    if text.lower() in _YES + _NO:
        return text.lower() in _NO
    raise LaunchError(f"{variable}={text!r}: wanted 0 or 1")
