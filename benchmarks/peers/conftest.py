"""Makes the benchmark's modules known to its tests."""

import sys

import workloads

sys.path.append(str(workloads.EXAMPLE))
