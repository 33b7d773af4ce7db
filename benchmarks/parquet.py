"""Rows/s of `ParquetDataset` and of pyarrow's `iter_batches`, on the same files in the same run.

There are two files: flat (int64 label, 13 float32, 26 int64) and lists (10 columns of list<int64> with 0 to 20 ids).
Ours goes through TensorFlow, up to the tensors that a graph takes batch by batch; pyarrow's ends at record batches.
`tf.data` is pyarrow's in `Dataset.from_generator`, the way into a graph without this library.
Both read from a warm page cache, with the same number of threads. A pass reads the flat file four times, and the list
file, of as many bytes, once. Files have many batches. Our batches continue in the next file, which copies the batch
that lies in both; pyarrow's end with the file. The order of the two alternates, each round gives one ratio, and the
median counts. The table has wall time, which means little on a busy machine, and CPU time.

  python benchmarks/parquet.py [--rows 1000000] [--rounds 5] [--threads 2] [--folder /tmp]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator

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
    return counting(ParquetDataset([path] * passes, batch_size, partition_count=1, num_threads=threads))


def counting(dataset: tf.data.Dataset) -> Callable[[], int]:
    """Returns a function that takes all batches of columns in a graph, and returns the number of their rows."""
    name = next(iter(dataset.element_spec))

    def add(rows: tf.Tensor, batch: dict[str, tf.Tensor | tf.RaggedTensor]) -> tf.Tensor:
        column = batch[name]
        return rows + (column.nrows(tf.int64) if isinstance(column, tf.RaggedTensor) else tf.shape(column, tf.int64)[0])

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


def tf_data_reader(path: str, passes: int, batch_size: int, threads: int) -> Callable[[], int]:
    schema = pq.ParquetFile(path).schema_arrow

    def spec(column: pa.Field) -> tf.TypeSpec:
        is_list = pa.types.is_list(column.type)
        dtype = tf.as_dtype((column.type.value_type if is_list else column.type).to_pandas_dtype())
        return (
            tf.RaggedTensorSpec([None, None], dtype, row_splits_dtype=tf.int32)
            if is_list
            else tf.TensorSpec([None], dtype)
        )

    def tensor(column: pa.Array) -> np.ndarray | tf.RaggedTensor:
        if not pa.types.is_list(column.type):
            return column.to_numpy()
        splits = column.offsets.to_numpy()
        return tf.RaggedTensor.from_row_splits(column.flatten().to_numpy(), splits - splits[0], validate=False)

    def batches() -> Iterator[dict[str, np.ndarray | tf.RaggedTensor]]:
        for _ in range(passes):
            for batch in pq.ParquetFile(path).iter_batches(batch_size, use_threads=threads > 1):
                yield {name: tensor(batch[name]) for name in schema.names}

    specs = {column.name: spec(column) for column in schema}
    return counting(tf.data.Dataset.from_generator(batches, output_signature=specs).prefetch(1))


READERS = {"lockstep": lockstep_reader, "pyarrow": pyarrow_reader, "tf.data": tf_data_reader}


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
    parser.add_argument("--codecs", nargs="+", default=["zstd", "snappy"], help="compression of the files")
    parser.add_argument("--batches", nargs="+", type=int, default=[4096, 65536], help="rows of a batch")
    parser.add_argument("--json", help="also write the median rates there, in million rows per second")
    args = parser.parse_args()
    pa.set_cpu_count(args.threads)
    rng = np.random.default_rng(7)
    measured = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or temporary
        print(f"{args.threads} threads, median of {args.rounds} rounds, million rows/s")
        head = f"{'file':<6} {'codec':<7} {'batch':>6} " + "".join(f"{name:>9}" for name in READERS)
        print(f"{head} {'lockstep / pyarrow':>20} {'CPU':>6}")
        for file, make, rows, group in (
            ("flat", flat_table, args.rows, 100_000),
            ("lists", list_table, args.rows * 4 // 5, 20_000),
        ):
            for codec in args.codecs:
                path = os.path.join(folder, f"{file}_{rows}_{codec}.parquet")
                if not os.path.exists(path):
                    pq.write_table(make(rows, rng), path, row_group_size=group, compression=codec)
                for batch_size in args.batches:
                    rates = measure(file, codec, path, batch_size, args)
                    measured.append({"file": file, "codec": codec, "batch": batch_size, "rates": rates})
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")
    if args.json:
        with open(args.json, "w") as out:
            json.dump(measured, out)


def measure(file: str, codec: str, path: str, batch_size: int, args: argparse.Namespace) -> dict[str, float]:
    """Prints a line, and returns the rate of each reader in million rows per second of wall time."""
    reads = [(name, make(path, PASSES[file], batch_size, args.threads)) for name, make in READERS.items()]
    results: dict[str, list[tuple[float, float]]] = {name: [] for name in READERS}
    for _, read in reads:
        read()  # warms page cache and allocators
    for _ in range(args.rounds):
        for name, read in reads:
            results[name].append(rows_per_second(read))
        reads.reverse()
    rates = {name: statistics.median(wall for wall, _ in own) / 1e6 for name, own in results.items()}
    wall, cpu = (
        statistics.median(a[i] / b[i] for a, b in zip(results["lockstep"], results["pyarrow"], strict=True))
        for i in range(2)
    )
    print(
        f"{file:<6} {codec:<7} {batch_size:>6} "
        + "".join(f"{rate:9.2f}" for rate in rates.values())
        + f" {wall:>20.2f} {cpu:>6.2f}",
        flush=True,
    )
    return rates


if __name__ == "__main__":
    main()
