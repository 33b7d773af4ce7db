"""Python objects on all ranks, by cloudpickle."""

from __future__ import annotations

from typing import Any

import cloudpickle

from lockstep._src.collectives import named_bytes, named_job
from lockstep._src.compat.horovod import job
from lockstep._src.compat.horovod.membership import root_in, taking_part
from lockstep._src.compat.horovod.process_sets import ProcessSet, global_process_set


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Returns the object of a rank; see `horovod.tensorflow.broadcast_object`."""
    what = f"broadcast_object {name or ''}".strip()
    with (
        taking_part("broadcast_object", process_set, at_once=True) as group,
        root_in(process_set, root_rank, what) as root,
    ):
        is_root = job.rank() == root_rank
        data, failure = _pickled(obj) if is_root else (b"", None)
        received = named_bytes.broadcast_bytes(data, root, name=name, group=group, operation="broadcast_object")
    if failure is not None:
        raise failure
    return obj if is_root else _unpickled(received, what, root_rank)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Returns the objects of all ranks; see `horovod.tensorflow.allgather_object`."""
    what = f"allgather_object {name or ''}".strip()
    with taking_part("allgather_object", process_set, at_once=True) as group:
        data, failure = _pickled(obj)
        gathered = named_bytes.gather_bytes(data, name=name, group=group, operation="allgather_object")
        ranks = named_job.ranks_of(group)
    if failure is not None:
        raise failure
    return [_unpickled(data, what, rank) for data, rank in zip(gathered, ranks, strict=True)]


class _Failure:
    """Travels in place of an object that cannot be pickled, because the other ranks would wait for the object."""

    def __init__(self, why: str):
        self.why = why


def _pickled(obj: Any) -> tuple[bytes, Exception | None]:
    """Returns the object as bytes; for one that cannot be pickled, a _Failure as bytes and the error."""
    try:
        return cloudpickle.dumps(obj), None
    except Exception as error:  # an object's own code may raise any
        return cloudpickle.dumps(_Failure(f"{type(error).__name__}: {error}")), error


def _unpickled(data: bytes, what: str, rank: int) -> Any:
    """Returns the object of a rank; raises ValueError if that rank could not pickle it."""
    obj = cloudpickle.loads(data)
    if isinstance(obj, _Failure):
        raise ValueError(f"{what}: the object of rank {rank} cannot be pickled: {obj.why}")
    return obj
