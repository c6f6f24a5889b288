"""ZMQ's sockets in a client of Tango events: between many subscriptions there is time to close them."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from facade.clock import Clock

_MOST: Final = 300
"""Sockets that may be open; libzmq has 1,023 for a process, and Tango opens up to three at once."""
_CLOSED_WITHIN: Final = 30.0
"""After so long one goes on all the same [s]: then it is something else that holds them."""
_LOOK_AGAIN: Final = 0.005
_DESCRIPTORS: Final = Path("/proc/self/fd")


def await_sockets(clock: Clock) -> None:
    """Wait while too many sockets are open; call it before each subscription that begins or ends.

    For each of these Tango opens a socket to its own thread of events, three where it ends. libzmq closes them in a
    thread of its own, which falls behind on a busy machine. The 1,024th is refused ("Too many open files"): then the
    subscription does not end, its callback is freed nevertheless, and the next event crashes the process.
    """
    end = clock.monotonic() + _CLOSED_WITHIN
    while open_sockets() > _MOST and clock.monotonic() < end:
        clock.sleep(_LOOK_AGAIN)


def open_sockets() -> int:
    """Return the number of event descriptors of this process: each socket of ZMQ has one; 0 where there is no /proc."""
    count = 0
    with suppress(OSError):
        for name in os.listdir(_DESCRIPTORS):
            with suppress(OSError):  # closed meanwhile
                count += "eventfd" in os.readlink(_DESCRIPTORS / name)
    return count
