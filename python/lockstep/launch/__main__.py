"""`python -m lockstep.launch`."""

import sys

from lockstep.launch.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
