"""What the launcher raises."""


class LaunchError(Exception):
    """A job that cannot be started; the message says what was found and what is wanted.

    Attributes:
      exit_code: What the launcher exits with: 2 for a wrong request, 126 and 127 as a shell for a command that
        cannot be executed or found.
    """

    def __init__(self, message: str, exit_code: int = 2):
        super().__init__(message)
        self.exit_code = exit_code


# Exit code of a job that lost a host, as of ssh that found none.
LOST = 255


class HostLost(LaunchError):
    """A host could not be reached, or was lost, before its workers ran."""

    def __init__(self, message: str):
        super().__init__(message, LOST)
