"""Rows/s of `ParquetDataset` and of pyarrow's `iter_batches`, on the same files in the same run.

There are two files: flat (int64 label, 13 float32, 26 int64) and lists (10 columns of list<int64> with 0 to 20 ids).
Ours goes through TensorFlow, up to the tensors that a graph takes batch by batch; pyarrow's ends at record batches.
Both read from a warm page cache, with the same number of threads. A pass reads the flat file four times, and the list
file, of as many bytes, once. Files have many batches. Our batches continue in the next file, which copies the batch
that lies in both; pyarrow's end with the file. The order of the two alternates, each round gives one ratio, and the
median counts. The table has wall time, which means little on a busy machine, and CPU time.

  python benchmarks/parquet.py [--rows 1000000] [--rounds 5] [--threads 2] [--folder /tmp]
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

from lockstep.data import ParquetDataset

# The number of reads of a file per measurement, so that TensorFlow's start does not count.
PASSES = {"flat": 4, "lists": 1}


def flat_table(rows: int, rng: np.random.Generator) -> pa.Table:
    columns = {"label": rng.integers(0, 2, rows)}
    columns |= {f"i{i}": rng.random(rows, np.float32) for i in range(13)}
    # Ids as in a click log: few are frequent, and cardinalities differ by orders of magnitude.
    columns |= {f"c{i}": rng.zipf(1.2, rows) % (10 ** (1 + i % 6)) for i in range(26)}
    return pa.table(columns)


def list_table(rows: int, rng: np.random.Generator) -> pa.Table:
    columns = {}
    for i in range(10):
        offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 21, rows))]).astype(np.int32)
        ids = rng.zipf(1.2, offsets[-1]) % 1_000_000
        columns[f"l{i}"] = pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids))
    return pa.table(columns)


def lockstep_reader(path: str, passes: int, batch_size: int, threads: int) -> Callable[[], int]:
    dataset = ParquetDataset([path] * passes, batch_size, partition_count=1, num_threads=threads)
    name = next(iter(dataset.element_spec))

    def add(rows: tf.Tensor, batch: dict[str, tf.Tensor | tf.RaggedTensor]) -> tf.Tensor:
        column = batch[name]
        return rows + (column.nrows() if isinstance(column, tf.RaggedTensor) else tf.shape(column, tf.int64)[0])

    count = tf.function(lambda: dataset.reduce(np.int64(0), add))
    return lambda: int(count())


def pyarrow_reader(path: str, passes: int, batch_size: int, threads: int) -> Callable[[], int]:
    def read() -> int:
        rows = 0
        for _ in range(passes):
            batches = pq.ParquetFile(path).iter_batches(batch_size, use_threads=threads > 1)
            rows += sum(batch.num_rows for batch in batches)
        return rows

    return read


def rows_per_second(read: Callable[[], int]) -> tuple[float, float]:
    """Returns rows per second of wall time and of CPU time."""
    wall, cpu = time.perf_counter(), time.process_time()
    rows = read()
    return rows / (time.perf_counter() - wall), rows / (time.process_time() - cpu)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--rows", type=int, default=1_000_000, help="rows of the flat file; the list file has four fifths"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--folder", help="keeps the files here, and reuses existing ones")
    args = parser.parse_args()
    pa.set_cpu_count(args.threads)
    rng = np.random.default_rng(7)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or temporary
        print(f"{args.threads} threads, median of {args.rounds} rounds, million rows/s")
        print(f"{'file':<6} {'codec':<7} {'batch':>6} {'lockstep':>9} {'pyarrow':>8} {'ratio':>6} {'CPU ratio':>10}")
        for file, make, rows, group in (
            ("flat", flat_table, args.rows, 100_000),
            ("lists", list_table, args.rows * 4 // 5, 20_000),
        ):
            for codec in ("zstd", "snappy"):
                path = os.path.join(folder, f"{file}_{rows}_{codec}.parquet")
                if not os.path.exists(path):
                    pq.write_table(make(rows, rng), path, row_group_size=group, compression=codec)
                for batch_size in (4096, 65536):
                    measure(file, codec, path, batch_size, args)
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


def measure(file: str, codec: str, path: str, batch_size: int, args: argparse.Namespace) -> None:
    ours, theirs = [], []
    pair = [
        (ours, lockstep_reader(path, PASSES[file], batch_size, args.threads)),
        (theirs, pyarrow_reader(path, PASSES[file], batch_size, args.threads)),
    ]
    for _, read in pair:
        read()  # warms page cache and allocators
    for _ in range(args.rounds):
        for results, read in pair:
            results.append(rows_per_second(read))
        pair.reverse()
    wall, cpu = ([a[i] / b[i] for a, b in zip(ours, theirs, strict=True)] for i in range(2))
    print(
        f"{file:<6} {codec:<7} {batch_size:>6} {statistics.median(wall for wall, _ in ours) / 1e6:>9.2f} "
        f"{statistics.median(wall for wall, _ in theirs) / 1e6:>8.2f} {statistics.median(wall):>6.2f} "
        f"{statistics.median(cpu):>10.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
