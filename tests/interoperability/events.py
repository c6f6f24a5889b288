"""When a client that has subscribed is given events."""

from collections.abc import Callable, Sequence

from tests.support.deployment import ICD
from tests.support.waiting import until

ONLINE, ENGINEERING = (ICD.enums["AdminMode"].index(mode) for mode in ("ONLINE", "ENGINEERING"))


def await_events(set_mode: Callable[[int], object], modes: Callable[[], Sequence[object]]) -> None:
    """Set the adminMode of a device that is ONLINE to and fro until ENGINEERING has come as an event.

    Tango's clients say over ZMQ what they want, in the order in which they have subscribed, but on a connection that is
    made after the first subscription has returned: what is sent before is lost, without a word.

    Parameters
    ----------
    modes
        Gives all that has come of adminMode; it is what was subscribed to last.
    """
    calls = 0

    def came() -> bool:
        nonlocal calls
        if ENGINEERING in modes():
            return True
        set_mode((ENGINEERING, ONLINE)[calls % 2])
        calls += 1
        return False

    until(came, "the new mode as an event", every=0.25)
