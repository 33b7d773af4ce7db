"""The errors that the launcher raises."""


class LaunchError(Exception):
    """An error for a job that cannot be started. The message says what was found and what is wanted.

    Attributes:
      exit_code: The launcher's exit code: 2 for a wrong request, and like a shell 126 or 127 for a command that cannot
        be executed or found.
    """

    def __init__(self, message: str, exit_code: int = 2):
        super().__init__(message)
        self.exit_code = exit_code


# The exit code of a job that lost a host; ssh uses the same for a host that it cannot reach.
LOST = 255


class HostLost(LaunchError):
    """An error for a host that could not be reached, or was lost, before its workers ran."""

    def __init__(self, message: str):
        super().__init__(message, LOST)
