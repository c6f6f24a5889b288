"""Devices with commands: each call becomes a record on the bus, and returns its id."""

import json
import threading
from collections.abc import Callable
from typing import Any

import tango
from tango.server import command

from devices.kernel.base import ADDED_LATER, FacadeDevice
from devices.kernel.mapping import TangoReading, to_tango
from devices.kernel.queries import as_tango, client_of, refusal, tango_query
from facade.flows.commands.approvals import Decision, Named, approve, read_named, withdraw
from facade.flows.commands.gateway import Gateway, read_request
from facade.flows.commands.outcomes import OK, QUEUED, WAITING
from facade.flows.commands.refused import ATTRIBUTE as LAST_REFUSAL
from facade.flows.commands.view import as_dict
from facade.kernel import tracing
from facade.kernel.errors import NotSent, OutcomeUnknown
from facade.kernel.icd.model import CommandDefinition, DeviceClass
from facade.kernel.reading import Reading
from facade.sdp import admin_mode
from facade.sdp.admin_mode import allowed
from facade.sdp.device_state import OBS_STATE, SETTINGS, StateMessage, state_record, states_of
from facade.sdp.device_state import TOPIC as STATES
from facade.sdp.replay import why_refused

_NOT_ALLOWED = "API_AttrNotAllowed"

_LONGEST_HISTORY = 2000
_SWITCHED = (tango.DevState.ON, tango.DevState.OFF)
_RESULT = "[ResultCode.QUEUED], [command id]: the bus has the command; its outcome is shown by attributes."


class ModeRequest(Named, kw_only=True):
    """The JSON argument of SetAdminMode: a mode and its operator."""

    mode: str


class CommandedDevice(FacadeDevice):
    """A device with adminMode and commands.

    No call holds the device monitor during a wait for the bus: its readers would wait as well.
    """

    def __init__(self, *arguments: Any) -> None:
        self._moving = threading.Lock()
        """Held while a mode is being set."""
        super().__init__(*arguments)

    @classmethod
    def tango_commands(cls, entry: DeviceClass) -> dict[str, Any]:
        """Make the Tango commands of a device class of the ICD, by name."""
        made = {one.name: tango_command(one) for one in entry.commands}
        return made | {one.name: tango_query(one) for one in entry.queries}

    def read_shown(self, name: str) -> TangoReading:
        """Return the reading of an attribute.

        The event loop alone shows readings and sends their events. A read after a call, or after an outcome, shows its
        effect all the same: lastRefusal and reported values are read from the stores that calls and records change.
        """
        shown, newest = super().read_shown(name), self._newest(name)
        made = shown if newest is None else to_tango(self.icd, self.entries[name], newest)
        return shown if made[0] == shown[0] else made

    def dev_state(self) -> tango.DevState:
        """Return the State, which changes with the outcome of a command as obsState does; see `read_shown`."""
        state, service = super().dev_state(), self.service
        gateway = None if service is None else service.find(Gateway)
        if gateway is None or state not in _SWITCHED or not gateway.ready():
            return state
        return getattr(tango.DevState, gateway.show(self.get_name().lower())[0])

    def dev_status(self) -> str:
        """Return the Status, which names the State of a read at the same time."""
        told, now = (f"The device is in {state} state" for state in (self.get_state(), self.dev_state()))
        return super().dev_status().replace(told, now, 1)

    def _newest(self, name: str) -> Reading | None:
        """Return the reading of an attribute that calls or outcomes change; None: it is another one, or unknown."""
        device, service = self.get_name().lower(), self.service
        if service is None or not (self.entries[name].reported or name == LAST_REFUSAL):
            return None
        gateway = service.find(Gateway)
        if name == LAST_REFUSAL:
            return None if gateway is None else gateway.refusals.reading(device)
        if name == OBS_STATE:
            label = gateway.show(device)[1] if gateway is not None and gateway.ready() else None
            return None if label is None else Reading(label, self.clock.now_us())
        told = states_of(service).get(device, name) if service.has_read(STATES, SETTINGS) else None
        return None if told is None else Reading(told.value, told.time or self.clock.now_us())

    def write_adminMode(self, value: int) -> None:  # noqa: N802 - Tango's name
        """Write the mode to the bus; it is valid after all in-sync replicas have it.

        Raises
        ------
        tango.DevFailed
            The control model forbids the move, or the bus did not confirm it in time.
        """
        self._set_mode(self.icd.enums["AdminMode"][value])

    def query_SetAdminMode(self, text: str) -> tuple[list[int], list[str]]:  # noqa: N802 - Tango's name
        """Set adminMode in the name of an operator, as `write_adminMode` does without one."""
        where, modes = "SetAdminMode", self.icd.enums["AdminMode"]
        with as_tango(where):
            request = read_named(ModeRequest, text, where)
        if request.mode not in modes:
            raise refusal(f"$.mode: expected one of {', '.join(modes)}, got {request.mode!r:.100}", where)
        self._set_mode(request.mode, request.operator)
        return [OK], [request.mode]

    def _set_mode(self, wanted: str, operator: str = "") -> None:
        client = client_of(self)
        with tango.AutoTangoAllowThreads(self):
            # Two moves may each be allowed, but not one after the other.
            if not self._moving.acquire(blocking=False):
                raise refusal("another write waits for the bus; try again in a second", admin_mode.ATTRIBUTE)
            try:
                self._send_mode(wanted, client, operator)
            finally:
                self._moving.release()

    def _send_mode(self, wanted: str, client: str, operator: str) -> None:
        name, service, device = admin_mode.ATTRIBUTE, self.service, self.get_name().lower()
        if service is None or not service.has_read(SETTINGS):
            raise refusal("the bus was not reached yet, so the present mode is not known; try again later", name)
        if why := why_refused(self.clock):
            raise refusal(why, name, _NOT_ALLOWED)
        gateway = self.gateway(name)
        if why := gateway.why_not_held():
            raise refusal(f"adminMode {wanted} was not sent: {why}", name)
        current = states_of(service).label(device, name)
        if not allowed(current, wanted):
            why = f"from {current} the SKA control model does not lead to {wanted}; OFFLINE is between"
            raise refusal(why, name, _NOT_ALLOWED)
        who = {"client": client, "operator": operator}
        message = StateMessage(
            device=device, attribute=name, value=wanted, time=self.clock.now_us(), origin=device, **who
        )
        try:
            # As a command: a record that has not left in time is dropped, and cannot take effect later.
            gateway.sender.send(state_record(message, SETTINGS), gateway.timeout).result()
        except NotSent as error:
            raise refusal(f"adminMode {wanted} was not sent, and will not take effect: {error}", name) from error
        except OutcomeUnknown as error:
            what = f"adminMode {wanted}: outcome unknown: {error}; read adminMode before you write it again"
            raise refusal(what, name) from error
        # The next call must find it, even before the record has come back.
        states_of(service).set(message)

    def give(self, name: str, argument: str | None, operator: str = "") -> tuple[list[int], list[str]]:
        """Write a command to the bus; return ResultCode QUEUED and the command's id.

        Raises
        ------
        tango.DevFailed
            It was refused, not sent, or not confirmed in time; the text says which.
        """
        gateway, device, client = self.gateway(name), self.get_name().lower(), client_of(self)
        with tango.AutoTangoAllowThreads(self), as_tango(f"{type(self).__name__}.{name}"):
            id = gateway.give(device, name, argument, tracing.current(), client=client, operator=operator)
            return [QUEUED], [id]

    def query_GiveCommand(self, text: str) -> tuple[list[int], list[str]]:  # noqa: N802 - Tango's name
        """Give a command in the name of an operator."""
        device_class = self.gateway("GiveCommand").classes[self.get_name().lower()]
        with as_tango("GiveCommand"):
            request = read_request(text, device_class)
        return self.give(request.command, request.argument, request.operator)

    def query_ApproveCommand(self, text: str) -> tuple[list[int], list[str]]:  # noqa: N802 - Tango's name
        """Approve a command that waits for a second person."""
        where = "ApproveCommand"
        gateway, device, client = self.gateway(where), self.get_name().lower(), client_of(self)
        with tango.AutoTangoAllowThreads(self), as_tango(where):
            id = approve(gateway, device, read_named(Decision, text, where), tracing.current(), client=client)
            return [QUEUED], [id]

    def query_WithdrawCommand(self, text: str) -> tuple[list[int], list[str]]:  # noqa: N802 - Tango's name
        """Withdraw a command that waits for a second person."""
        where = "WithdrawCommand"
        gateway, device, client = self.gateway(where), self.get_name().lower(), client_of(self)
        with tango.AutoTangoAllowThreads(self), as_tango(where):
            id = withdraw(gateway, device, read_named(Decision, text, where), tracing.current(), client=client)
            return [OK], [id]

    def query_GetCommand(self, id: str) -> str:  # noqa: N802 - Tango's name
        """Return the record of one command, as JSON."""
        tracked = self.gateway("GetCommand").tracker.find(id)
        if tracked is None or tracked.device != self.get_name().lower():
            what = f"expected the id of a command of this device, got {id!r:.100}; GetCommandHistory gives the newest"
            raise refusal(what, "GetCommand")
        is_kept = tracked.state in WAITING or tracked.message.argument is not None
        return json.dumps(as_dict(tracked) | ({"argument": tracked.message.argument} if is_kept else {}))

    def query_GetCommandHistory(self, most: int) -> str:  # noqa: N802 - Tango's name
        """Return the newest commands, the newest first."""
        if not 1 <= most <= _LONGEST_HISTORY:
            raise refusal(f"expected 1 to {_LONGEST_HISTORY} commands, got {most}", "GetCommandHistory")
        tracker, device = self.gateway("GetCommandHistory").tracker, self.get_name().lower()
        known = sorted(tracker.finished(device, most) + tracker.pending(device), key=lambda one: one.message.issued)
        return json.dumps([as_dict(one) for one in reversed(known[-most:])])

    def gateway(self, where: str) -> Gateway:
        """Return the gateway, which exists once the server is up."""
        gateway = None if self.service is None else self.service.find(Gateway)
        if gateway is None:
            raise refusal("the device server is still starting; try again", where)
        if self.get_name().lower() not in gateway.classes:
            raise refusal(f"the device {ADDED_LATER}", where)
        return gateway


def tango_command(entry: CommandDefinition) -> Callable[..., Any]:
    """Make the Tango command of an ICD entry."""

    def call(self: CommandedDevice) -> tuple[list[int], list[str]]:
        return self.give(entry.name, None)

    def call_with(self: CommandedDevice, argument: str) -> tuple[list[int], list[str]]:
        return self.give(entry.name, argument)

    body = call if entry.argument is None else call_with
    body.__name__, body.__doc__ = entry.name, entry.description
    options: dict[str, Any] = {"dtype_out": "DevVarLongStringArray", "doc_out": _RESULT}
    if entry.argument is not None:
        options |= {"dtype_in": str, "doc_in": f"JSON, ska-sdp-{entry.argument}. {entry.description}"}
    made: Callable[..., Any] = command(body, **options)
    return made
