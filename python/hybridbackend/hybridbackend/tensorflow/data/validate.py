"""`python -m hybridbackend.tensorflow.data.validate`: checks Parquet files."""

import sys

from lockstep.data import validate

if __name__ == "__main__":
    sys.exit(validate())
