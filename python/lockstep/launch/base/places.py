"""The place of each worker of a job: its rank, host and local rank. Ranks are numbered host by host."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.launch.base.errors import LaunchError

# More than any job has. It bounds the lists that have an entry for each worker.
MOST_WORKERS = 1 << 16


@dataclass(frozen=True)
class Place:
    """The place of a worker.

    Attributes:
      rank: In the job.
      size: Number of workers of the job.
      local_rank: On its host.
      local_size: Number of workers of its host.
      cross_rank: The index of its host, among the hosts with a worker of the same local rank.
      cross_size: The number of these hosts.
      host: The host's name.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    host: str

    def variables(self) -> dict[str, str]:
        """Returns the variables that the engine reads."""
        return {
            "LOCKSTEP_RANK": str(self.rank),
            "LOCKSTEP_WORLD_SIZE": str(self.size),
            "LOCKSTEP_LOCAL_RANK": str(self.local_rank),
            "LOCKSTEP_LOCAL_WORLD_SIZE": str(self.local_size),
            "LOCAL_WORLD_SIZE": str(self.local_size),
        }

    def horovod_variables(self) -> dict[str, str]:
        """Returns the variables that programs of Horovod's read."""
        return {
            "HOROVOD_HOSTNAME": self.host,
            "HOROVOD_RANK": str(self.rank),
            "HOROVOD_SIZE": str(self.size),
            "HOROVOD_LOCAL_RANK": str(self.local_rank),
            "HOROVOD_LOCAL_SIZE": str(self.local_size),
            "HOROVOD_CROSS_RANK": str(self.cross_rank),
            "HOROVOD_CROSS_SIZE": str(self.cross_size),
        }


def check_size(workers: int, asked: str) -> None:
    """Checks the number of workers. To be called before any list with an entry for each worker is made.

    Args:
      workers: The number of workers of the whole job.
      asked: The option or variable that asks for so many, for the message.

    Raises:
      LaunchError: a job cannot have so many.
    """
    if workers > MOST_WORKERS:
        raise LaunchError(f"{asked}: got {workers} workers, wanted at most {MOST_WORKERS}")


def places(hosts: Sequence[tuple[str, int]]) -> list[Place]:
    """Returns the places of a job's workers, in the order of their ranks.

    Args:
      hosts: Names, each with the number of its workers.
    """
    size = sum(count for _, count in hosts)
    # By local rank: the number of hosts with such a worker, and of those before the current host.
    having = Counter(local for _, count in hosts for local in range(count))
    before: Counter[int] = Counter()
    found: list[Place] = []
    for host, count in hosts:
        for local in range(count):
            found.append(Place(len(found), size, local, count, before[local], having[local], host))
        before.update(range(count))
    return found
