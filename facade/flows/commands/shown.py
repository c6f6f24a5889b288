"""State and obsState as devices show them, and the command whose effect is still to come: worked out here only."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from facade.flows.commands.outcomes import Tracked
from facade.flows.commands.rules import shown, unsettled
from facade.flows.commands.tracker import Tracker
from facade.kernel.icd.model import DeviceClass
from facade.sdp.admin_mode import ATTRIBUTE as ADMIN_MODE
from facade.sdp.admin_mode import DISABLED
from facade.sdp.device_state import OBS_STATE, STATE, DeviceStates

SUBARRAY = "SdpSubarray"


class Look(NamedTuple):
    """What a device shows at one moment."""

    state: str
    obs_state: str | None
    """None for a device without one, or if it is not known."""
    unsettled: Tracked | None
    """The newest command whose effect has not been reported yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What devices show; may be used from several threads.

    The event loop folds records meanwhile, and of an outcome its states first. So the commands are taken before the
    reports: the effect of one that has ended since is in the reports, or the command is still under way here.
    """

    classes: Mapping[str, DeviceClass]
    """Device class by device name."""
    tracker: Tracker
    states: DeviceStates
    known: Callable[[], bool]
    """Whether all records from before the start have been read."""
    state_of: Callable[[str], str]
    """Returns the Tango State of a device that is not a subarray."""

    def look(self, device: str) -> Look:
        """Return all at once, for the check of the next command."""
        device_class = self.classes[device]
        commands = {command.name: command for command in device_class.commands}
        pending = self.tracker.under_way(device)
        reports = {name: self.states.get(device, name) for name in (STATE, OBS_STATE)}
        obs_state = shown(OBS_STATE, reports[OBS_STATE], "", pending, commands) or None
        return Look(self.state(device), obs_state, unsettled(reports, pending, commands))

    def state(self, device: str) -> str:
        """Return the Tango State."""
        device_class = self.classes[device]
        if device_class.name != SUBARRAY:
            return self.state_of(device)
        if not self.known() or self.states.has_lost(device, ADMIN_MODE):
            return "UNKNOWN"
        if self.states.label(device, ADMIN_MODE) in DISABLED:
            return "DISABLE"
        pending = self.tracker.under_way(device)
        commands = {command.name: command for command in device_class.commands}
        initial = "UNKNOWN" if self.states.are_lost else "OFF"
        return shown(STATE, self.states.get(device, STATE), initial, pending, commands)
