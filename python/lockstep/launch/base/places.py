"""Where each worker of a job stands. Ranks run over the hosts, and over the workers of each."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.launch.base.errors import LaunchError

# More than any job has: what is listed by worker has an end.
MOST_WORKERS = 1 << 16


@dataclass(frozen=True)
class Place:
    """A worker's.

    Attributes:
      rank: In the job.
      size: Workers of the job.
      local_rank: On its host.
      local_size: Workers of its host.
      cross_rank: Its host's, among the hosts that have a worker of its local rank.
      cross_size: How many these are.
      host: What the host is called.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    host: str

    def variables(self) -> dict[str, str]:
        """What the engine reads."""
        return {
            "LOCKSTEP_RANK": str(self.rank),
            "LOCKSTEP_WORLD_SIZE": str(self.size),
            "LOCKSTEP_LOCAL_RANK": str(self.local_rank),
            "LOCKSTEP_LOCAL_WORLD_SIZE": str(self.local_size),
            "LOCAL_WORLD_SIZE": str(self.local_size),
        }

    def horovod_variables(self) -> dict[str, str]:
        """What programs of Horovod's read."""
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
    """To be called before anything is listed by worker.

    Args:
      workers: Of the whole job.
      asked: What wants so many.

    Raises:
      LaunchError: they are more than a job can have.
    """
    if workers > MOST_WORKERS:
        raise LaunchError(f"{asked}: got {workers} workers, wanted at most {MOST_WORKERS}")


def places(hosts: Sequence[tuple[str, int]]) -> list[Place]:
    """Those of a job's workers, in the order of their ranks.

    Args:
      hosts: Names, each with the number of its workers.
    """
    size = sum(count for _, count in hosts)
    # By local rank: the hosts that have a worker of it, and those that came before.
    having = Counter(local for _, count in hosts for local in range(count))
    before: Counter[int] = Counter()
    found: list[Place] = []
    for host, count in hosts:
        for local in range(count):
            found.append(Place(len(found), size, local, count, before[local], having[local], host))
        before.update(range(count))
    return found
