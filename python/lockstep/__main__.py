"""`python -m lockstep`."""

import sys

from lockstep.command import main

if __name__ == "__main__":
    sys.exit(main())
