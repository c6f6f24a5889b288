"""Waiting for conditions, never for time."""

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")
HANG = 240.0
"""After so long nothing will come any more, on a machine of any speed [s]."""
LONGEST_PAUSE = 0.5
"""Between two looks [s], also if each takes longer, as where a server does not answer."""
_SOONEST = 0.002
"""The shortest pause [s]."""
_SHARE = 4
"""A pause is so many times as long as the look before it: what is awaited needs the machine, and the server that is
looked at."""


def until(condition: Callable[[], Found], what: str, *, every: float = 0.05) -> Found:
    """Return the first true value of `condition`; fail with `what`, and the last value seen, when there is none.

    Parameters
    ----------
    every
        Pause between two looks [s]. It is shorter at first, as most conditions are true soon, and longer for one that
        takes long, such as reading a topic. 0: no pause, for a condition that does the awaited work.
    """
    began = begin = time.monotonic()
    while True:
        found = condition()
        if found:
            return found
        end = time.monotonic()
        if end - began > HANG:
            raise AssertionError(f"not within {HANG:g} s: {what}; last seen: {found!r}")
        if every:
            time.sleep(max(min(every, _SOONEST + (end - began) / 10), min(_SHARE * (end - begin), LONGEST_PAUSE)))
        begin = time.monotonic()


def until_equal(get: Callable[[], Found], wanted: Found, what: str) -> None:
    """Wait until `get` gives `wanted`; fail with both, side by side where they are dicts."""
    seen: list[Found] = []

    def same() -> bool:
        seen[:] = [get()]
        return seen[0] == wanted

    try:
        until(same, what)
    except AssertionError:
        raise AssertionError(f"not within {HANG:g} s: {what}: {difference(seen[0], wanted)}") from None


def difference(found: object, wanted: object) -> str:
    if isinstance(found, dict) and isinstance(wanted, dict):
        keys = [key for key in {**found, **wanted} if found.get(key) != wanted.get(key)]
        return "; ".join(f"{key}: found {found.get(key)!r}, wanted {wanted.get(key)!r}" for key in keys)
    return f"found {found!r}, wanted {wanted!r}"
