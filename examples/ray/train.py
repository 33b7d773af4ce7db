"""A model with a sharded and a dynamic table, trained by Ray Train on two workers of this machine.

    pip install 'ray[train]'
    cd examples/ray && python train.py

A started cluster of Ray trains on its nodes instead: `RAY_ADDRESS=auto python train.py --workers 8 --results s3://...`.
"""

import argparse
import tempfile
from pathlib import Path

import keras
import numpy as np
import ray.train
from ray.train import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.tensorflow import TensorflowTrainer

import lockstep
import lockstep.keras
from lockstep.ray import LockstepConfig

ROWS = 4096
BATCH_ROWS = 512  # of all workers together


class Report(keras.callbacks.Callback):
    """Reports the metrics and weights of each epoch to Ray."""

    def on_epoch_end(self, epoch, logs=None):
        """Saves on all workers, as each has a part of the tables. Worker 0 writes the file."""
        with tempfile.TemporaryDirectory() as folder:
            self.model.save_weights(Path(folder, "model.weights.h5"))
            checkpoint = Checkpoint.from_directory(folder) if lockstep.rank() == 0 else None
            ray.train.report({"epoch": epoch, **logs}, checkpoint=checkpoint)


def build_model() -> keras.Model:
    """Returns a model that predicts a rating from a user and an item."""
    keras.utils.set_random_seed(7)  # tables begin alike with any number of workers
    user, item = (keras.Input([], name=name, dtype="int64") for name in ("user", "item"))
    with lockstep.embedding_scope():
        of_user = keras.layers.Embedding(1000, 8)(user)  # rows 0 to 999, spread over the workers
        of_item = lockstep.keras.DynamicEmbedding(8)(item)  # a row for each number that occurs
    return keras.Model({"user": user, "item": item}, keras.layers.Dense(1)(keras.layers.Concatenate()([of_user, of_item])))


def train(config: dict) -> None:
    """Trains on one worker of the job; Ray calls it on each."""
    rng = np.random.default_rng(0)
    rows = {"user": rng.integers(0, 1000, ROWS), "item": rng.integers(0, 1 << 60, ROWS)}
    ratings = (rows["user"] % 5).astype(np.float32)
    # Each batch of the job is divided among the workers.
    mine = np.arange(ROWS).reshape(-1, lockstep.size(), BATCH_ROWS // lockstep.size())[:, lockstep.rank()].ravel()

    with lockstep.scope():
        model = build_model()
        model.compile(lockstep.keras.LazyAdam(0.01), "mse", metrics=["mae"])
        begin = 0
        if checkpoint := ray.train.get_checkpoint():  # Ray has started the job again, after a failure
            with checkpoint.as_directory() as folder:
                model.load_weights(Path(folder, "model.weights.h5"))
            begin = 1 + ray.train.get_context().get_metadata().get("epoch", 0)
        model.fit(
            {name: values[mine] for name, values in rows.items()},
            ratings[mine],
            batch_size=BATCH_ROWS // lockstep.size(),
            initial_epoch=begin,
            epochs=config["epochs"],
            shuffle=False,
            verbose=0,
            callbacks=[Report()],
        )


def main() -> None:
    """Starts the workers, and prints the last metrics."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--results", default=str(Path("~/ray_results").expanduser()), help="a folder, or an address")
    flags = parser.parse_args()
    trainer = TensorflowTrainer(
        train,
        train_loop_config={"epochs": flags.epochs},
        tensorflow_config=LockstepConfig(),
        scaling_config=ScalingConfig(num_workers=flags.workers),
        run_config=RunConfig(
            storage_path=flags.results,
            checkpoint_config=CheckpointConfig(num_to_keep=1),
            failure_config=FailureConfig(max_failures=3),
        ),
    )
    result = trainer.fit()
    print(f"{flags.workers} workers: {result.metrics}, weights in {result.checkpoint.path}")


if __name__ == "__main__":
    main()
