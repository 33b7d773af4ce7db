"""The place of this process in its job, from the environment that the launcher sets."""

from __future__ import annotations

import dataclasses
import hmac
import os
from collections.abc import Mapping

# The variables for rank and number of processes, from horovodrun and from this project's launcher.
_VARIABLES = (("HOROVOD_RANK", "HOROVOD_SIZE"), ("LOCKSTEP_RANK", "LOCKSTEP_WORLD_SIZE"))
# Variables that are the same in all processes of a job, and differ between jobs.
_JOB_VARIABLES = ("LOCKSTEP_RENDEZVOUS", "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT")


@dataclasses.dataclass(frozen=True)
class Place:
    """A process of a job.

    Attributes:
      rank: 0 to `size` - 1.
      size: number of processes.
      job: an id that differs between jobs; empty if the environment has no information about the job.
    """

    rank: int
    size: int
    job: str = ""


def own_place(environment: Mapping[str, str] = os.environ) -> Place:
    """Returns the place that a launcher gave this process. Without a launcher, it is the only process of its job.

    Raises:
      ValueError: a variable is not a number or out of range, or only one of the two is set.
    """
    for rank_variable, size_variable in _VARIABLES:
        if rank_variable not in environment and size_variable not in environment:
            continue
        texts = environment.get(rank_variable), environment.get(size_variable)
        try:
            rank, size = (int(text or "") for text in texts)
        except ValueError:
            raise ValueError(
                f"{rank_variable} is {texts[0]!r} and {size_variable} {texts[1]!r}, wanted two numbers"
            ) from None
        if not 0 <= rank < size:
            raise ValueError(f"{rank_variable} is {rank}, wanted 0 to {size_variable} - 1 ({size - 1})")
        return Place(rank, size, _job(environment))
    return Place(0, 1, _job(environment))


def _job(environment: Mapping[str, str]) -> str:
    secret = environment.get("LOCKSTEP_SECRET", "")
    known = [environment.get(name, "") for name in _JOB_VARIABLES]
    if not secret and not any(known):
        return ""
    # A file will hold the id. It is therefore a digest, which does not reveal the secret.
    return hmac.new(secret.encode(), "\n".join(known).encode(), "sha256").hexdigest()[:32]
