"""Scans of subarrays: nodes of a scanning subarray must not be silent."""

import re
from typing import Final

from facade.kernel.clock import SECOND, Time
from facade.kernel.outcome import Suppressed
from facade.kernel.recent import Bounded
from facade.kernel.runtime.composition import Server
from facade.sdp.device_state import OBS_STATE, StateMessage, states_of

SCAN_ID, SCANNING = "scanID", "SCANNING"
"""Reported attribute with the scan of a subarray, and its obsState during a scan."""
OTHER_SUBARRAY: Final = Suppressed("other-subarray")
_SETTLING = 5 * SECOND
"""Time after the begin of a scan in which nodes may still be silent."""
_MOST_SCANS = 1000
_ID = re.compile("[1-9][0-9]{0,15}")
"""A scan; no device server may have checked the value."""


class Scans:
    """The scan that each subarray ran, and the subarrays that scan now, by the controllers' reports."""

    def __init__(self) -> None:
        self._ran: Bounded[int, str] = Bounded(_MOST_SCANS)
        """Device of the subarray by scan, the newest last."""
        self._since: dict[str, Time] = {}
        """Begin of the scan of each scanning subarray."""

    def take(self, message: StateMessage) -> None:
        """Process a report about a device."""
        if message.attribute == OBS_STATE and message.value != SCANNING:
            self._since.pop(message.device, None)
        elif message.attribute == OBS_STATE:
            self._since.setdefault(message.device, message.time)
        elif message.attribute == SCAN_ID and _ID.fullmatch(message.value):
            self._ran[int(message.value)] = message.device

    def subarray(self, scan: int) -> str:
        """Return the subarray of a scan; empty: unknown."""
        return self._ran.get(scan, "")

    def scanning(self, now: Time) -> list[str]:
        """Return the subarrays that have been scanning for a while at a time."""
        return sorted(device for device, since in self._since.items() if now - since > _SETTLING)


def scans(server: Server) -> Scans:
    """Return the scans of a device server with a flow of device states."""
    if (found := server.find(Scans)) is None:
        found = server.share(Scans)
        states_of(server).listeners.append(found.take)
    return found
