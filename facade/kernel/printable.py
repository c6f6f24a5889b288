"""Foreign text in a form for terminals, logs, Tango strings and headers of dead letters."""

from collections.abc import Sequence
from typing import Any, Final

_LONGEST_EXCERPT: Final = 500


def printable(text: str, *, keep: str = "") -> str:
    r"""Return a text that moves no cursor, changes no direction and begins no line.

    Controls, direction marks, line separators, lone surrogates and other invisible characters are written as
    ``\uXXXX``, which in JSON has the same meaning.

    Parameters
    ----------
    keep
        Characters that stay, such as the line ends of a text of our own.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in keep else escaped(one) for one in text)


def escaped(text: str) -> str:
    r"""Return each character of a text as ``\uXXXX``, characters beyond 16 bits as two of them."""
    pairs = text.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{pairs[at]:02x}{pairs[at + 1]:02x}" for at in range(0, len(pairs), 2))


def excerpt(text: str) -> str:
    """Return the printable beginning of a text, for headers and logs."""
    return printable(text[:_LONGEST_EXCERPT])[:_LONGEST_EXCERPT]


def listed(names: Sequence[str], most: int) -> str:
    """Return the first of some names, and the number of the others."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def label_of(labels: Sequence[str], value: Any) -> str:
    """Return the label of an enumeration's value, or the value itself: newer servers may have further ones."""
    return dict(enumerate(labels)).get(value, str(value))
