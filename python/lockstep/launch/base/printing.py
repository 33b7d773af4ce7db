"""Text for the terminal whose reader may go, as in `lockstep timeline FOLDER | head`."""

import os
import sys


def print_text(text: str) -> None:
    """Prints a text and a line end. If the reader of the output has closed it, this and later texts are dropped."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # The interpreter flushes the output once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
