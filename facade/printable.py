"""Text from elsewhere as it may leave: on a terminal, in a log, in a Tango string or in a dead letter's header."""

from collections.abc import Sequence
from typing import Final

_LONGEST_EXCERPT: Final = 500


def printable(text: str, *, keep: str = "") -> str:
    r"""Return a text that can only be read: it moves no cursor, turns no direction and begins no line.

    Controls, marks of direction, line separators, halves of characters and whatever else cannot be seen are written
    as ``\uXXXX``, which in JSON means the same as before.

    Parameters
    ----------
    keep
        Characters that stay, such as the line ends of a text of our own.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in keep else escaped(one) for one in text)


def escaped(text: str) -> str:
    r"""Return each character of a text as ``\uXXXX``, those beyond 16 bits as two of them."""
    pairs = text.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{pairs[at]:02x}{pairs[at + 1]:02x}" for at in range(0, len(pairs), 2))


def excerpt(text: str) -> str:
    """Return the printable beginning of a text: what a hostile record can make us write into headers and logs."""
    return printable(text[:_LONGEST_EXCERPT])[:_LONGEST_EXCERPT]


def listed(names: Sequence[str], most: int) -> str:
    """Return the first of some names, and how many others there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
