"""Who did what: entries that the records of some topics give, for `sdp-facade audit`."""

from typing import NamedTuple


class AuditEntry(NamedTuple):
    """One act of a person or of a program, whether it was done or refused."""

    time: float
    """When it was asked for [Unix s]."""
    act: str
    """Such as a command, or what was done about an alarm."""
    target: str
    """Such as a device, or an alarm."""
    client: str
    """Host and process that asked, as far as Tango or the system tells; empty: not known."""
    operator: str
    """Name that the caller stated, which nobody checks; empty: none."""
    said: str = ""
    """Comment of the operator, or why it was refused."""
