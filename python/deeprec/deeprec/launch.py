"""DeepRec's spelling of the launcher: `python -m tensorflow.python.distribute.launch [-n N] python main.py ...`."""

import sys

from lockstep.launch.frontends.deeprec import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main(program="tensorflow.python.distribute.launch"))
