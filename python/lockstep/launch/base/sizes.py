"""Numbers of bytes for people."""


def size_of(number: float) -> str:
    """Returns a number of bytes for a person, such as "1.5 GiB"."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if number < 1024 or unit == "GiB":
            return f"{number:.0f} {unit}" if number >= 100 or number == int(number) else f"{number:.1f} {unit}"
        number /= 1024
    raise AssertionError("the last unit returns")
