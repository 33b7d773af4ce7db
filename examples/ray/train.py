"""A model with a sharded and a dynamic table, trained by Ray Train on two workers of this machine.

    pip install 'ray[default,train]'
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
    """Reports metrics and weights to Ray after each epoch, and begins with the weights of Ray's last checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self._last = ray.train.get_checkpoint()  # None, unless Ray has started the workers again after a failure
        self.first_epoch = self._last.get_metadata()["epoch"] + 1 if self._last else 0

    def on_train_begin(self, logs=None):
        """Loads weights and the optimizer's state on all workers. Each takes its part of the tables."""
        if self._last:
            self.model.optimizer.build(self.model.trainable_variables)
            with self._last.as_directory() as folder:
                self.model.load_weights(Path(folder, "model.weights.h5"))

    def on_epoch_end(self, epoch, logs=None):
        """Saves on all workers, as each has a part of the tables. Worker 0 writes the file, and Ray keeps it."""
        with tempfile.TemporaryDirectory() as folder:
            self.model.save_weights(Path(folder, "model.weights.h5"))
            checkpoint = Checkpoint.from_directory(folder) if lockstep.rank() == 0 else None
            if checkpoint:
                checkpoint.set_metadata({"epoch": epoch})
            ray.train.report({"epoch": epoch, **logs}, checkpoint=checkpoint)


def build_model() -> keras.Model:
    """Returns a model that predicts a rating from a user and an item."""
    keras.utils.set_random_seed(7)  # tables begin alike with any number of workers
    user, item = (keras.Input([], name=name, dtype="int64") for name in ("user", "item"))
    with lockstep.embedding_scope():
        of_user = keras.layers.Embedding(1000, 8, name="users")(user)  # rows 0 to 999, spread over the workers
        of_item = lockstep.keras.DynamicEmbedding(8, name="items")(item)  # a row for each number that occurs
    rating = keras.layers.Dense(1, name="rating")(keras.layers.Concatenate()([of_user, of_item]))
    return keras.Model({"user": user, "item": item}, rating)


def data() -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Returns the users and items of all rows, and their ratings."""
    rng = np.random.default_rng(0)
    rows = {"user": rng.integers(0, 1000, ROWS), "item": rng.choice(rng.integers(0, 1 << 60, 500), ROWS)}
    return rows, (rows["user"] % 5).astype("float32")


def train(config: dict) -> None:
    """Trains on one worker of the job; Ray calls it on each."""
    rows, ratings = data()
    # Each batch of the job is divided among the workers.
    mine = np.arange(ROWS).reshape(-1, lockstep.size(), BATCH_ROWS // lockstep.size())[:, lockstep.rank()].ravel()

    with lockstep.scope():
        model = build_model()
        model.compile(keras.optimizers.Adagrad(0.1), "mse", metrics=["mae"])
        report = Report()
        model.fit(
            {name: values[mine] for name, values in rows.items()},
            ratings[mine],
            batch_size=BATCH_ROWS // lockstep.size(),
            initial_epoch=report.first_epoch,
            epochs=config["epochs"],
            shuffle=False,
            verbose=0,
            callbacks=[report],
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
