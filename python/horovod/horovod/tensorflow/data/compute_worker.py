"""A process of a data service: `horovodrun -np 4 python -m horovod.tensorflow.data.compute_worker FILE`."""

from lockstep.data_service import main, run_command

__all__ = ["main"]

if __name__ == "__main__":
    run_command("horovod.tensorflow.data.compute_worker")
