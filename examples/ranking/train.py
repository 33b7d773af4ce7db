"""Trains a ranking model on all workers of a job, evaluates it, exports it, and serves the export in stock TensorFlow.

    python -m hybridbackend.run -n 2 python examples/ranking/train.py                           # generated data
    python -m hybridbackend.run -n 2 python examples/ranking/train.py --data path/to/ml-100k    # MovieLens 100K
    python -m hybridbackend.run -n 2 python examples/ranking/train.py --data path/to/train.txt  # Criteo's text files

An interrupted job resumes from its last checkpoint when it is started again with the same flags.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import tensorflow as tf
from tqdm import tqdm

import data
import hybridbackend.tensorflow as hb
import picture
import reader
import report
from inputs import feed, parse_examples, placeholders
from models import MODELS, OPTIMIZERS, Features, mean_loss
from schema import EVAL, LABEL, TRAIN, Schema, files
from settings import Plan, parser

tf1 = tf.compat.v1
_HERE = Path(__file__).resolve().parent
_EVAL_BATCH = 8192  # over all workers
_THRESHOLDS = 1000
_WARM_UP_STEPS = 5


def flags_from(arguments: list[str] | None = None) -> argparse.Namespace:
    """Returns the parsed command line: see the head of the file, and --help."""
    flags = parser(__doc__)
    flags.add_argument("--data-dir", type=Path, default=data.DEFAULT_OUT, help="folder of prepared data (%(default)s)")
    flags.add_argument("--checkpoint-dir", type=Path, help="(a folder below --run-dir, a new one after a finished run)")
    flags.add_argument("--checkpoint-every", type=int, help="steps between checkpoints (an eighth of the run)")
    flags.add_argument("--export-dir", type=Path, help="folder of the SavedModel (a folder below --run-dir)")
    flags.add_argument("--run-dir", type=Path, help="(runs/ranking/ and a name from data, model and optimizer)")
    flags.add_argument("--eval-every", type=int, help="steps between evaluations (a quarter of the run)")
    flags.add_argument(
        "--compare-rows", type=int, default=16384, help="held-out rows to serve and compare (%(default)s)"
    )
    return flags.parse_args(arguments)


@dataclasses.dataclass(frozen=True)
class Run:
    """One start of the job: its data, its output folder, and the step from which it continues."""

    flags: argparse.Namespace
    folder: Path
    schema: Schema
    plan: Plan
    checkpoint_dir: Path
    export_dir: Path
    run_dir: Path
    start_step: int

    @classmethod
    def of(cls, flags: argparse.Namespace) -> Run:
        """Prepares the data if needed and looks for a checkpoint.

        Raises:
          ValueError: the batch cannot be divided by the workers, or is larger than the data.
        """
        folder = data.prepare_once(flags.data, flags.data_dir)
        schema = Schema.load(folder)
        plan = Plan.of(flags, schema)
        workers = hb.context.world_size
        if plan.batch_size % workers:
            raise ValueError(f"--batch-size {plan.batch_size} cannot be divided by {workers} workers")
        name = f"{folder.name}-{flags.model}{flags.embedding_dim}-{flags.optimizer}"
        run_dir = flags.run_dir or Path("runs") / "ranking" / name
        checkpoint_dir = flags.checkpoint_dir or run_dir / "checkpoints"
        latest = tf.train.latest_checkpoint(checkpoint_dir)
        start_step = int(tf.train.load_variable(latest, "global_step")) if latest else 0
        export_dir = flags.export_dir or run_dir / "export"
        return cls(flags, folder, schema, plan, checkpoint_dir, export_dir, run_dir, start_step)

    def model(self, features: Features, embedding_scope) -> tf.Tensor:
        """Returns the logits [B] of the model that the flags name."""
        return MODELS[self.flags.model](features, self.schema, self.flags.embedding_dim, embedding_scope)


def training_batch(run: Run) -> Features:
    """Returns the worker's part of the next global batch, which has the same rows on any number of workers.

    The rows follow the order of the files, from the position of the last checkpoint on.
    """
    pass_over_rows = hb.data.ParquetDataset(
        files(run.folder, TRAIN),
        run.plan.batch_size // hb.context.world_size,
        fields=run.schema.columns,
        partition_by="batches",
        drop_remainder=True,
    ).take(run.plan.steps_per_epoch)
    batches = pass_over_rows.apply(hb.data.parse()).repeat().skip(run.start_step % run.plan.steps_per_epoch).prefetch(2)
    return tf1.data.make_one_shot_iterator(batches).get_next()


def evaluated_metrics(run: Run) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
    """Returns metrics of the held-out rows; each worker evaluates its share."""
    rows = max(1, _EVAL_BATCH // hb.context.world_size)
    held_out = hb.data.ParquetDataset(files(run.folder, EVAL), rows, fields=run.schema.columns)
    features = tf1.data.make_one_shot_iterator(held_out.apply(hb.data.parse()).prefetch(1)).get_next()
    scores = tf.sigmoid(run.model(features, hb.embedding_scope))
    return {
        "auc": hb.metrics.auc(features[LABEL], scores, num_thresholds=_THRESHOLDS),
        "accuracy": hb.metrics.accuracy(features[LABEL], tf.round(scores)),
    }


class ScoringHook(tf1.train.SessionRunHook):
    """A hook that scores the first held-out rows after training, for the comparison with the served model.

    All workers look up the same rows, because each holds a shard of every table.
    """

    def __init__(self, run: Run):
        self._run = run
        self.columns = reader.head(run.folder, EVAL, run.flags.compare_rows)
        self.scores = np.empty(0, np.float32)

    def begin(self) -> None:
        """Builds the scoring graph on training's variables."""
        with tf.name_scope("scoring"), hb.scope(mode="eval"):
            features, self._feeds = placeholders(self._run.schema)
            self._scores = tf.sigmoid(self._run.model(features, hb.embedding_scope))

    def end(self, session: tf1.Session) -> None:
        """Scores by the final weights."""
        self.scores = session.run(self._scores, feed(self._feeds, self.columns))


class ProgressHook(tf1.train.SessionRunHook):
    """Worker 0's progress bar and clock, and the losses of the steps.

    Args:
      run: the run.
      loss: scalar tensor, the loss of this worker's batch.
      history: evaluations so far; the bar shows the last AUC.
    """

    def __init__(self, run: Run, loss: tf.Tensor, history: list[dict]):
        self._run, self._loss, self._history = run, loss, history
        self._batch = run.plan.batch_size
        self._ended_at: list[float] = []
        self.loss = float("nan")
        self.losses: list[tuple[int, float]] = []
        self._bar: tqdm | None = None

    def before_run(self, run_context: tf1.train.SessionRunContext) -> tf1.train.SessionRunArgs:
        """Opens the bar at the first step and asks for the loss."""
        if self._bar is None:
            self._bar = tqdm(
                total=self._run.plan.total_steps * self._batch,
                initial=self._run.start_step * self._batch,
                unit=" samples",
                unit_scale=True,
                desc="Training",
                disable=hb.context.rank != 0,
            )
        return tf1.train.SessionRunArgs(self._loss)

    def after_run(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:
        """Moves the bar."""
        value = float(run_values.results)
        self.losses.append((self._run.start_step + len(self.losses) + 1, value))
        # The mean of about the last 20 steps.
        self.loss = value if np.isnan(self.loss) else self.loss + 0.05 * (value - self.loss)
        self._ended_at.append(time.perf_counter())
        shown = {"loss": f"{self.loss:.4f}"}
        if self._history:
            shown["auc"] = f"{self._history[-1]['auc']:.4f}"
        self._bar.set_postfix(shown, refresh=False)
        self._bar.update(self._batch)

    def close(self) -> None:
        """Leaves the bar on the screen unchanged."""
        if self._bar is not None:
            self._bar.close()

    def step_ms(self) -> float:
        """Returns the median time of a step, without the first few."""
        times = np.diff(self._ended_at[_WARM_UP_STEPS:])
        return float(np.median(times) * 1e3) if len(times) else float("nan")

    def samples_per_s(self) -> float:
        """Returns all workers' training rows per second, with checkpoints and evaluations, without the first steps."""
        steps = self._ended_at[_WARM_UP_STEPS:]
        return (len(steps) - 1) * self._batch / (steps[-1] - steps[0]) if len(steps) > 1 else float("nan")


@dataclasses.dataclass
class Trained:
    """The results of training for the report and the picture.

    `losses` has (step, loss of worker 0's batch); `history` the evaluations.
    """

    history: list[dict]
    losses: list[tuple[int, float]]
    labels: np.ndarray
    scores: np.ndarray
    loss: float
    step_ms: float
    samples_per_s: float


def session_config() -> tf1.ConfigProto:
    """Returns a configuration with the threads of one worker: its part of the machine's cores."""
    cores = max(1, len(os.sched_getaffinity(0)) // hb.context.local_world_size)
    return tf1.ConfigProto(intra_op_parallelism_threads=cores, inter_op_parallelism_threads=cores)


def train(run: Run) -> Trained:
    """Trains to the planned step, with checkpoints and evaluations during training."""
    total = run.plan.total_steps
    every = run.flags.eval_every or max(1, total // 4)
    history: list[dict] = []
    # The step determines the position in the data, on any number of workers.
    with tf.Graph().as_default(), hb.scope(save_data_position=False):
        batch = training_batch(run)
        loss = mean_loss(run.model(batch, hb.embedding_scope), batch[LABEL])
        optimizer = OPTIMIZERS[run.flags.optimizer](run.plan.learning_rate)
        step = optimizer.minimize(loss, tf1.train.get_or_create_global_step())
        evaluation = hb.train.EvaluationHook(
            lambda: evaluated_metrics(run), steps=None, every_n_iter=every, history=history, at_end=True
        )
        scoring, progress = ScoringHook(run), ProgressHook(run, loss, history)
        hooks = [evaluation, scoring, progress]
        session = tf1.train.MonitoredTrainingSession(
            checkpoint_dir=str(run.checkpoint_dir),
            save_checkpoint_steps=run.flags.checkpoint_every or max(1, total // 8),
            save_summaries_steps=None,
            save_summaries_secs=None,
            log_step_count_steps=None,
            hooks=hooks,
            config=session_config(),
        )
        try:
            with session:
                for _ in range(run.start_step, total):
                    session.run(step)
                if not history:
                    # The checkpoint was the last one: only its evaluation remains.
                    session.run_step_fn(lambda step_context: evaluation.evaluate(step_context.session))
        finally:
            progress.close()
    labels = scoring.columns[LABEL]
    speed = progress.step_ms(), progress.samples_per_s()
    return Trained(history, progress.losses, labels, scoring.scores, progress.loss, *speed)


def export(run: Run) -> tuple[str, str]:
    """Writes the SavedModel of the last checkpoint. Returns the paths of the checkpoint and the SavedModel."""
    checkpoint = tf.train.latest_checkpoint(run.checkpoint_dir)

    def signature():
        examples = tf1.placeholder(tf.string, [None], "examples")
        logits = run.model(parse_examples(examples, run.schema), hb.embedding_scope)
        return tf1.saved_model.predict_signature_def({"examples": examples}, {"score": tf.sigmoid(logits)})

    return checkpoint, hb.train.export(str(run.export_dir), checkpoint, signature)


def served_scores(run: Run, model: str) -> np.ndarray:
    """Returns the SavedModel's scores of the compared rows, from a process of stock TensorFlow."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "scores.npy"
        command = [sys.executable, str(_HERE / "serve.py"), "--model", model, "--data", str(run.folder)]
        command += ["--rows", str(run.flags.compare_rows), "--out", str(out)]
        process = subprocess.run(command, capture_output=True, text=True)
        if process.returncode:
            raise RuntimeError(f"serving {model} failed with exit code {process.returncode}:\n{process.stderr}")
        return np.load(out)


def finish(run: Run, trained: Trained) -> None:
    """Does worker 0's work after training: export, comparison, report, picture."""
    checkpoint, model = export(run)
    served = served_scores(run, model)
    if run.flags.checkpoint_dir is None:
        # The next start is a new run.
        kept = run.checkpoint_dir.with_name("checkpoints-finished")
        shutil.rmtree(kept, ignore_errors=True)
        run.checkpoint_dir.rename(kept)
        checkpoint = str(kept / Path(checkpoint).name)
    figures = {
        "data": run.schema.name,
        "model": run.flags.model,
        "workers": hb.context.world_size,
        "first_step": run.start_step,
        "steps": run.plan.total_steps,
        "batch_size": run.plan.batch_size,
        "samples_per_s": trained.samples_per_s,
        "step_ms": trained.step_ms,
        "training_loss": trained.loss,
        "held_out_rows": run.schema.eval_rows,
        "held_out_auc": float(trained.history[-1]["auc"]),
        "held_out_accuracy": float(trained.history[-1]["accuracy"]),
        **report.compare(trained.labels, trained.scores, served),
        "checkpoint": checkpoint,
        "export": model,
        "picture": str(run.run_dir / "training.svg"),
    }
    title = f"{run.flags.model} on {run.schema.name}, {hb.context.world_size} workers"
    evaluations = [(int(each["global_step"]), float(each["auc"])) for each in trained.history]
    panels = {"loss of a batch (worker 0)": trained.losses, "AUC of held-out rows": evaluations}
    picture.save(Path(figures["picture"]), title, panels)
    report.save(figures, run.run_dir)
    print(report.table(figures), flush=True)


def main() -> None:
    """Runs one worker of the job."""
    tf1.logging.set_verbosity(tf1.logging.ERROR)
    flags = flags_from()
    try:
        run = Run.of(flags)
    except (ValueError, OSError) as error:
        sys.exit(f"train.py: {error}")
    if run.start_step and hb.context.rank == 0:
        print(f"Resuming from step {run.start_step} of {run.plan.total_steps} ({run.checkpoint_dir})", flush=True)
    trained = train(run)
    if hb.context.rank == 0:
        finish(run, trained)


if __name__ == "__main__":
    main()
