"""Text for the terminal whose reader may go, as in `lockstep timeline FOLDER | head`."""

import os
import sys
import unicodedata

# Characters that change how a terminal shows what follows: controls, formats (such as the direction of text), parts of
# characters that no encoding can write, and separators of lines.
_UNSAFE = ("Cc", "Cf", "Cs", "Zl", "Zp")


def printable(text: str, lines: bool = False) -> str:
    r"""Returns the text with escapes (\x1b) in place of characters that a terminal would follow instead of showing.

    Names in files are chosen by the writers of the files.

    Args:
      text: Any text.
      lines: Whether to keep ends of lines.
    """
    if text.isprintable():
        return text
    return "".join(
        one.encode("unicode_escape").decode()
        if unicodedata.category(one) in _UNSAFE and not (lines and one == "\n")
        else one
        for one in text
    )


def print_text(text: str) -> None:
    """Prints a text and a line end, with escapes in place of control characters.

    If the reader of the output has closed it, this and later texts are dropped.
    """
    encoding = sys.stdout.encoding or "utf-8"
    try:
        print(printable(text, lines=True).encode(encoding, "backslashreplace").decode(encoding), flush=True)
    except BrokenPipeError:
        # The interpreter flushes the output once more when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_error(program: str, error: object) -> None:
    """Prints an error of a program on stderr, in one line without control characters."""
    print(f"{program}: {printable(' '.join(str(error).splitlines()))}", file=sys.stderr)
