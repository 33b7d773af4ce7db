"""The environment that workers on another host get: the launcher's, without what belongs to a machine or a login."""

import os
import re
from collections.abc import Mapping

from lockstep.launch.placement.devices import VARIABLES as DEVICES

# Of a login, a terminal, a service, or a machine. Everything else travels, as with horovodrun and srun.
_STAY = re.compile(
    r"_|HOME|USER|LOGNAME|SHELL|SHLVL|MAIL|PWD|OLDPWD|TERM|TERM_.*|COLORTERM|COLUMNS|LINES|TMPDIR|TEMP|TMP|HOSTNAME"
    r"|HOST|HOSTTYPE|MACHTYPE|OSTYPE|DISPLAY|WAYLAND_.*|XAUTHORITY|WINDOWID|SSH_.*|SUDO_.*|XDG_.*|DBUS_.*|GPG_.*"
    r"|TMUX.*|STY|KRB5CCNAME|NOTIFY_SOCKET|LISTEN_.*|INVOCATION_ID|JOURNAL_STREAM|MANAGERPID|SYSTEMD_.*|PS[0-9]"
    r"|PROMPT_COMMAND|BASH_.*|SLURM.*|SBATCH_.*|SRUN_.*|PMI.*|KUBERNETES_.*"
)
# What the job says, which nothing on the host stands in for.
_OF_THE_JOB = ("LOCKSTEP_", "HOROVOD_", "TF_CONFIG")
# But this one: what tells hosts apart.
_HOST = "LOCKSTEP_HOST"


def forwarded_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """What of a launcher's environment goes to other hosts."""
    return {name: value for name, value in environment.items() if not _STAY.fullmatch(name) and name != _HOST}


def combined_environment(travelled: Mapping[str, str], own: Mapping[str, str], folder: str) -> dict[str, str]:
    """What workers inherit on a host.

    Args:
      travelled: Of the launcher.
      own: Of the host. Where it says which GPUs there are (Slurm, a container) that is true, whatever the launcher has.
      folder: Their working folder.
    """
    told = dict(travelled)
    if any(name in own for name in DEVICES):
        for name in DEVICES:
            told.pop(name, None)
    kept = {name: value for name, value in own.items() if name == _HOST or not name.startswith(_OF_THE_JOB)}
    return {**kept, **told, "PWD": os.path.abspath(folder)}
