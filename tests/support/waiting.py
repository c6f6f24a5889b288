"""Waiting for conditions, never for time."""

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")
HANG = 240.0
"""After so long nothing will come any more, on a machine of any speed [s]."""
LONGEST_PAUSE = 0.5
"""Between two looks [s], also if each takes longer, as where a server does not answer."""


def until(condition: Callable[[], Found], what: str, *, every: float = 0.05) -> Found:
    """Return the first true value of `condition`; fail with `what`, and the last value seen, when there is none.

    A condition that takes long, such as one that reads a topic, is asked less often: what is awaited needs the machine.
    """
    begin = time.monotonic()
    deadline = begin + HANG
    while True:
        found = condition()
        if found:
            return found
        end = time.monotonic()
        if end > deadline:
            raise AssertionError(f"not within {HANG:g} s: {what}; last seen: {found!r}")
        time.sleep(max(every, min(end - begin, LONGEST_PAUSE)))
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
