"""Which process this is in its job, before anything is initialized."""

import os


def get_env_rank_and_size() -> tuple[int, int]:
    """Rank and number of processes, from the launcher's variables; (0, 1) without a launcher."""
    return int(os.environ.get("HOROVOD_RANK", 0)), int(os.environ.get("HOROVOD_SIZE", 1))
