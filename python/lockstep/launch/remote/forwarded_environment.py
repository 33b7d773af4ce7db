"""The environment of workers on another host: the launcher's, without variables of a machine or a login."""

import os
import re
from collections.abc import Mapping

from lockstep.launch.placement.devices import VARIABLES as DEVICES

# Variables of a login, a terminal, a service or a machine. All others are forwarded, as by horovodrun and srun.
_STAY = re.compile(
    r"_|HOME|USER|LOGNAME|SHELL|SHLVL|MAIL|PWD|OLDPWD|TERM|TERM_.*|COLORTERM|COLUMNS|LINES|TMPDIR|TEMP|TMP|HOSTNAME"
    r"|HOST|HOSTTYPE|MACHTYPE|OSTYPE|DISPLAY|WAYLAND_.*|XAUTHORITY|WINDOWID|SSH_.*|SUDO_.*|XDG_.*|DBUS_.*|GPG_.*"
    r"|TMUX.*|STY|KRB5CCNAME|NOTIFY_SOCKET|LISTEN_.*|INVOCATION_ID|JOURNAL_STREAM|MANAGERPID|SYSTEMD_.*|PS[0-9]"
    r"|PROMPT_COMMAND|BASH_.*|SLURM.*|SBATCH_.*|SRUN_.*|PMI.*|KUBERNETES_.*"
)
# Prefixes of variables that only the job may set, never the host.
_JOB_PREFIXES = ("LOCKSTEP_", "HOROVOD_", "TF_CONFIG")
# The exception: a host's own name for itself, which identifies it.
_HOST = "LOCKSTEP_HOST"


def forwarded_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the part of a launcher's environment that other hosts get."""
    return {name: value for name, value in environment.items() if not _STAY.fullmatch(name) and name != _HOST}


def combined_environment(forwarded: Mapping[str, str], own: Mapping[str, str], folder: str) -> dict[str, str]:
    """Returns the environment that workers inherit on a host.

    Args:
      forwarded: The launcher's variables.
      own: The host's variables. If they say which GPUs the host has (Slurm, a container), the launcher's values for
        these are dropped.
      folder: The workers' working folder.
    """
    variables = dict(forwarded)
    if any(name in own for name in DEVICES):
        for name in DEVICES:
            variables.pop(name, None)
    kept = {name: value for name, value in own.items() if name == _HOST or not name.startswith(_JOB_PREFIXES)}
    return {**kept, **variables, "PWD": os.path.abspath(folder)}
