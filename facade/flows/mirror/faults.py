"""What the mirror raises alarms about: devices that do not answer, and another mirror."""

from collections import defaultdict
from collections.abc import Callable, Mapping

from facade.flows.mirror.entry import Entry
from facade.flows.mirror.messages import device_of
from facade.flows.mirror.mirror import Mirror
from facade.printable import excerpt
from facade.runtime.flow import Fault, FaultKey

DISCONNECTED, CONFLICT = CONDITIONS = "mirrorDisconnected", "mirrorConflict"
"""Conditions of the ICD, which says how long a device must be away, and another mirror be there."""
MOST_FAULTS = 32
"""An array that is switched off is no thousand alarms: further devices are one."""


class Faults:
    """Finds the faults of a mirror.

    A fault that is not found has gone, so a device that was told to be away is told on for as long as it is away. Only
    for others there may be no room.

    Parameters
    ----------
    device
        The one that shows the mirror.
    """

    def __init__(self, mirror: Mirror, device: str) -> None:
        self._mirror, self._device = mirror, device
        self._told: set[str] | None = None
        """Devices that are away and have an alarm of their own; None: nobody has looked yet."""
        self.has_reported: Callable[[FaultKey, int], bool] = lambda key, began: False
        """See `facade.runtime.composition.Reporter`."""

    def find(self) -> Mapping[FaultKey, Fault] | None:
        """Return all faults; None: what is wanted is not known yet."""
        if not self._mirror.has_chosen:
            return None
        found = self._disconnected()
        if others := self._mirror.writers.beside(self._mirror.own):
            names = ", ".join(excerpt(one.incarnation) for one in others)
            text = f"telescope.model is also written by {len(others)} other mirrors, incarnation {names}"
            found[CONFLICT, self._device] = Fault("WARNING", text)
        return found

    def _disconnected(self) -> dict[FaultKey, Fault]:
        away: defaultdict[str, list[Entry]] = defaultdict(list)
        for entry in self._mirror.disconnected():
            away[device_of(entry.name)].append(entry)
        if self._told is None:  # what an earlier life has told is on the bus
            self._told = {one for one in away if self.has_reported((DISCONNECTED, one), 0)}
        self._told &= away.keys()
        new = sorted(away.keys() - self._told)
        self._told.update(new[: max(MOST_FAULTS - len(self._told), 0)])
        found = {
            (DISCONNECTED, device): Fault("WARNING", _why(away[device]), values={"attributes": len(away[device])})
            for device in sorted(self._told)
        }
        if more := len(away) - len(found):
            text = f"{more} more devices do not answer: see disconnectedAttributes of {self._device}"
            found[DISCONNECTED, self._device] = Fault("WARNING", text, values={"devices": more})
        return found


def _why(entries: list[Entry]) -> str:
    newest = entries[0].newest
    return f"{len(entries)} attributes are not mirrored: {excerpt(newest.error) if newest else 'nobody answers'}"
