"""The training workloads: models, sizes, steps, and the systems that run them.

Two models train on two kinds of data. All features have Criteo's Kaggle cardinalities, cut to 200,000 rows, and ids of
zipf(1.05). Both models have 13 numeric features.

`dlrm` is examples/ranking's DLRM, with one id of each of 26 features.

`multi_hot` has 1 to 2 * ids - 1 ids of each of 26 features. Their rows are added, and a hidden layer of 64 follows.

This module imports only the standard library, because every peer's environment loads it.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "ranking"
# Where the processes of this benchmark find its modules and the example's modules.
PYTHONPATH = os.pathsep.join(str(folder) for folder in (Path(__file__).parent, EXAMPLE))

GLOBAL_BATCH = 4096
LEARNING_RATE = 0.01
ACCUMULATOR = 1e-4  # Adagrad's initial value; with TensorFlow's default of 0.1, rare rows would hardly change
ZIPF = 1.05
EVAL_ROWS = 50_000
DATA = ROOT / "build" / "benchmark-data"  # where generated data is kept
ALL = ("lockstep", "plain", "apart", "horovod", "ps", "torchrec", "fbgemm")
# The whole run would take too long with all systems in all workloads.
FASTER = ("lockstep", "apart", "torchrec", "fbgemm")
HIDDEN = 64  # width of the hidden layer of `multi_hot`


@dataclasses.dataclass(frozen=True)
class Workload:
    """A model, its data, and the number of steps.

    Attributes:
      name: its name on the command line and in the file of figures.
      title: its name in table and picture.
      model: "dlrm" or "multi_hot".
      dim: width of the embeddings.
      workers: number of workers.
      ids: mean number of ids of a feature; 1 for DLRM.
      warm_up, timed: steps before the clock starts, and steps that it times.
      auc_steps: steps after which the AUC is measured; 0: it is not measured.
      batches: different batches in the data. Training begins again after them.
      systems: the names of the systems that train it.
      table_rows: the most rows of a table.
    """

    name: str
    title: str
    model: str
    dim: int
    workers: int = 2
    ids: int = 1
    warm_up: int = 10
    timed: int = 40
    auc_steps: int = 0
    batches: int = 150
    systems: tuple[str, ...] = ALL
    table_rows: int = 200_000

    def shortened(self) -> Workload:
        """Returns the same workload with few steps, for a trial."""
        return dataclasses.replace(self, warm_up=3, timed=6, auc_steps=12 if self.auc_steps else 0)


def multi_hot(ids: int, dim: int, systems: tuple[str, ...] = FASTER, auc_steps: int = 0) -> Workload:
    """Returns the workload of features with so many ids in the mean, whose data has as many ids in any case."""
    return Workload(
        name=f"multi-hot-{ids}-{dim}",
        title=f"{ids} ids, width {dim}",
        model="multi_hot",
        dim=dim,
        ids=ids,
        batches=max(1, 240 // ids),
        timed=30,
        auc_steps=auc_steps,
        systems=systems,
    )


_ALL = [
    Workload("dlrm-16", "DLRM, width 16", "dlrm", 16, timed=100, auc_steps=150, systems=(*ALL, "dense")),
    Workload("dlrm-64", "DLRM, width 64", "dlrm", 64, timed=80, systems=(*FASTER, "horovod", "dense")),
    Workload("dlrm-16-4", "DLRM, width 16, 4 workers", "dlrm", 16, workers=4, timed=60, systems=(*FASTER, "horovod")),
    multi_hot(10, 16, systems=ALL, auc_steps=100),
    multi_hot(10, 64),
    multi_hot(30, 16),
]
WORKLOADS = {workload.name: workload for workload in _ALL}


def prepared(workload: Workload, out: Path) -> Path:
    """Returns the folder of a workload's data, which is generated once below `out`."""
    is_dlrm = workload.model == "dlrm"
    script = EXAMPLE / "data.py" if is_dlrm else Path(__file__).with_name("multi_hot.py")
    command = [sys.executable, str(script), "--out", str(out), "--max-table-rows", str(workload.table_rows)]
    command += ["--zipf", str(ZIPF), "--rows", str(workload.batches * GLOBAL_BATCH)]
    command += ["--eval-rows", str(EVAL_ROWS if is_dlrm else EVAL_ROWS // 5)]
    command += [] if is_dlrm else ["--ids", str(workload.ids)]
    made = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": PYTHONPATH}
    )
    return Path(made.stdout.strip())
