"""adminMode: the moves of the SKA control model.

They are free within {NOT_FITTED, RESERVED, OFFLINE} and within {OFFLINE, ENGINEERING, ONLINE}; OFFLINE is the only
bridge. The mode is stored on the topic `settings`, so it survives restarts.
"""

ATTRIBUTE = "adminMode"

_OUT_OF_USE = frozenset({"NOT_FITTED", "RESERVED", "OFFLINE"})
_IN_USE = frozenset({"OFFLINE", "ENGINEERING", "ONLINE"})
DISABLED = _OUT_OF_USE
"""Modes in which a device's State is DISABLE, and it takes no commands."""
MODE_LOST = "adminMode is not known, because the topic settings was made again, or cut; set it to any mode"
"""Text for operators about a device that may have been taken out of use, and takes no commands until it is set."""


def allowed(current: str, wanted: str) -> bool:
    """Return whether the control model allows a change of mode; from an unknown one (empty), each."""
    return not current or {current, wanted} <= _OUT_OF_USE or {current, wanted} <= _IN_USE
