"""Exports the model of this example, and then a delta for each few increments of the training job.

python examples/serving/deliver.py --checkpoints checkpoints --exports exports
"""

from __future__ import annotations

import argparse
import logging
import time
from pathlib import Path

import tensorflow.compat.v1 as tf

import lockstep
import model

_log = logging.getLogger("deliver")


def newest(exports: Path) -> Path | None:
    """Returns the newest delta on the newest export of a folder, or the export if it has none."""
    export = max((path for path in exports.glob("*") if path.name.isdecimal()), key=lambda p: int(p.name), default=None)
    deltas = sorted(exports.glob(f"deltas/{export.name}-*")) if export else []
    return deltas[-1] if deltas else export


def deliver(since: Path | None, checkpoints: Path, exports: Path) -> Path | None:
    """Writes what is newer than `since`: a delta, or a full export if there is nothing to build on.

    Returns:
      The new folder, or `since` if nothing is newer; None without a checkpoint yet.
    """
    if since is not None:
        try:
            return Path(lockstep.export_delta(since) or since)
        except tf.errors.FailedPreconditionError as error:
            _log.info("%s", error.message)
    checkpoint = tf.train.latest_checkpoint(checkpoints)
    if checkpoint is None:
        return None
    return Path(lockstep.train.export(exports, checkpoint, model.signature, updatable=True))


def main() -> None:
    """Delivers until the process is ended."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--checkpoints", type=Path, required=True, help="folder of the training job's checkpoints")
    flags.add_argument("--exports", type=Path, required=True, help="folder for exports and deltas")
    flags.add_argument("--poll-seconds", type=float, default=1.0, help="between two looks (%(default)s)")
    given = flags.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    since = newest(given.exports)
    while True:
        made = deliver(since, given.checkpoints, given.exports)
        if made != since:
            _log.info("wrote %s", made)
        since = made
        time.sleep(given.poll_seconds)


if __name__ == "__main__":
    main()
