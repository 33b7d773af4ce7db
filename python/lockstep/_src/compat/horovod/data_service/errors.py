"""What the data service raises beside ValueError and IndexError for wrong arguments."""

from collections.abc import Mapping

# What a failure's text starts with where it is handed on; the reason follows.
FAILED = "the compute job has failed: "


class TimeoutException(Exception):
    """Somebody did not come in time.

    Attributes:
      message: the text.
    """

    def __init__(self, message: str):
        super().__init__(message)
        self.message = message


class DataServiceError(RuntimeError):
    """The compute job cannot be used; the base of those below."""


class UnreachableError(DataServiceError):
    """Nothing answers at the addresses of the compute job: it has ended, or there is no way to it."""


class WrongKeyError(DataServiceError):
    """What answers has another key: the config file is of another compute job than the one that runs there."""


class ComputeJobError(DataServiceError):
    """The compute job answers, or has left word, that it has failed or ends."""


# What the registry's server reports to its clients, by name.
REPORTED: Mapping[str, type[Exception]] = {
    kind.__name__: kind for kind in (IndexError, ValueError, TimeoutException, ComputeJobError)
}
