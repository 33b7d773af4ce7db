"""`python -m hybridbackend.run [-n N] [--tf1] python main.py ...`: HybridBackend's spelling of the launcher."""

import sys

from lockstep.launch import main

if __name__ == "__main__":
    sys.exit(main(program="hybridbackend.run"))
