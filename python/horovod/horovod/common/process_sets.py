"""Process sets: some ranks of the job that run collectives together, beside the others."""

from lockstep._src.compat.horovod.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]
