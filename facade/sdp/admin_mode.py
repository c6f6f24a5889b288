"""adminMode: the moves of the SKA control model.

They are free within {NOT_FITTED, RESERVED, OFFLINE} and within {OFFLINE, ENGINEERING, ONLINE}; OFFLINE is the only
bridge. The mode is stored on the state topic, so it survives restarts.
"""

ATTRIBUTE = "adminMode"

_OUT_OF_USE = frozenset({"NOT_FITTED", "RESERVED", "OFFLINE"})
_IN_USE = frozenset({"OFFLINE", "ENGINEERING", "ONLINE"})
DISABLED = _OUT_OF_USE
"""Modes in which a device's State is DISABLE, and it takes no commands."""


def allowed(current: str, wanted: str) -> bool:
    """Return whether the control model lets a device go from one mode to another."""
    return {current, wanted} <= _OUT_OF_USE or {current, wanted} <= _IN_USE
