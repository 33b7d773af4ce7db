"""Rows/s of `ParquetDataset` beside pyarrow's `iter_batches`, on the same files in the same run.

Two files: flat (int64 label, 13 float32, 26 int64) and lists (10 columns of list<int64> with 0 to 20 ids). Ours goes
through TensorFlow, up to tensors in an eager loop; pyarrow's ends at record batches. Both read a warm page cache with
the same number of threads. The order of the two alternates, each round gives one ratio, and the median counts.

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

from lockstep.data import ParquetDataset


def flat_table(rows: int, rng: np.random.Generator) -> pa.Table:
    columns = {"label": rng.integers(0, 2, rows)}
    columns |= {f"i{i}": rng.random(rows, np.float32) for i in range(13)}
    # Ids as a click log has them: few are frequent, and cardinalities differ by orders of magnitude.
    columns |= {f"c{i}": rng.zipf(1.2, rows) % (10 ** (1 + i % 6)) for i in range(26)}
    return pa.table(columns)


def list_table(rows: int, rng: np.random.Generator) -> pa.Table:
    columns = {}
    for i in range(10):
        offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 21, rows))]).astype(np.int32)
        ids = rng.zipf(1.2, offsets[-1]) % 1_000_000
        columns[f"l{i}"] = pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids))
    return pa.table(columns)


def read_with_lockstep(path: str, batch_size: int, threads: int) -> int:
    rows = 0
    for batch in ParquetDataset(path, batch_size, partition_count=1, num_threads=threads):
        rows += int(next(iter(batch.values())).shape[0])
    return rows


def read_with_pyarrow(path: str, batch_size: int, threads: int) -> int:
    return sum(b.num_rows for b in pq.ParquetFile(path).iter_batches(batch_size, use_threads=threads > 1))


def rows_per_second(read: Callable[[str, int, int], int], path: str, batch_size: int, threads: int) -> float:
    start = time.perf_counter()
    rows = read(path, batch_size, threads)
    return rows / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the flat file; the list file has a fifth")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--folder", help="keeps the files here, and uses those that are there")
    args = parser.parse_args()
    pa.set_cpu_count(args.threads)
    rng = np.random.default_rng(7)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or temporary
        print(f"{args.threads} threads, median of {args.rounds} rounds, million rows/s")
        print(f"{'file':<6} {'codec':<7} {'batch':>6} {'lockstep':>9} {'pyarrow':>8} {'ratio':>6}")
        for file, make, rows, group in (
            ("flat", flat_table, args.rows, 100_000),
            ("lists", list_table, args.rows // 5, 20_000),
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
    pair = [(ours, read_with_lockstep), (theirs, read_with_pyarrow)]
    for read in (read_with_lockstep, read_with_pyarrow):
        read(path, batch_size, args.threads)  # warms page cache and allocators
    for _ in range(args.rounds):
        for results, read in pair:
            results.append(rows_per_second(read, path, batch_size, args.threads))
        pair.reverse()
    ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    print(
        f"{file:<6} {codec:<7} {batch_size:>6} {statistics.median(ours) / 1e6:>9.2f} "
        f"{statistics.median(theirs) / 1e6:>8.2f} {ratio:>6.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
