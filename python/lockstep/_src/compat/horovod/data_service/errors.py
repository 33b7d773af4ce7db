"""The exceptions of the data service; for wrong arguments it raises ValueError and IndexError."""

from collections.abc import Mapping

# The prefix of a failure's text when it is passed on; the reason follows.
FAILED = "the compute job has failed: "


class TimeoutException(Exception):
    """A dispatcher, a worker or rank 0 did not start or stop in time.

    Attributes:
      message: the text.
    """

    def __init__(self, message: str):
        super().__init__(message)
        self.message = message


class DataServiceError(RuntimeError):
    """The base of the errors below: the compute job cannot be used."""


class UnreachableError(DataServiceError):
    """Nothing answers at the addresses of the compute job: it has ended, or it cannot be reached."""


class WrongKeyError(DataServiceError):
    """The compute job that answers has another key, so the config file belongs to another compute job."""


class ComputeJobError(DataServiceError):
    """The compute job has failed or is ending, by its own reply or by the note in its config file."""


# The errors that the registry's server reports to its clients, by name.
REPORTED: Mapping[str, type[Exception]] = {
    kind.__name__: kind for kind in (IndexError, ValueError, TimeoutException, ComputeJobError)
}
