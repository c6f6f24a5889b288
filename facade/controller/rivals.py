"""A controller does not start beside one of another group that executes the same commands."""

import logging
from collections.abc import Callable, Collection

from facade.bus.kafka.admin import newest_records
from facade.bus.kafka.connection import Connection
from facade.bus.port import Fenced
from facade.controller.api import Controller
from facade.errors import BusError
from facade.flows.commands.flow import Components
from facade.runtime.heartbeats import SILENT, TOPIC, HeartbeatMessage, decode_heartbeat

_log = logging.getLogger(__name__)

_LOOK = 0.3
"""Time between two looks at the heartbeats [s]."""
_RECENT = 5000
"""Heartbeats that are looked at: more than all components write while one of them falls silent."""


def await_no_rival(
    controller: Controller, devices: Collection[str], connection: Connection, *, stopped: Callable[[], bool]
) -> bool:
    """Make sure that no other group executes the commands of these devices; False: waiting was to end before.

    Controllers of one group need no such check: the group gives each device to one of them, and ends the older one of
    two that have the same name.

    Raises
    ------
    Fenced
        A controller of another group is alive and executes commands of one of the devices.
    """
    clock = connection.clock
    heard: dict[str, float] = {}
    while not stopped():
        try:
            rivals = _rivals(controller, devices, connection)
        except BusError as error:
            _log.warning("waiting for the broker before commands are taken: %s", error)
            clock.sleep(_LOOK)
            continue
        if not rivals:
            return True
        for name, (beat, at) in rivals.items():
            # One that was killed was heard of a moment ago as well; one that is alive is heard of once more.
            if at > heard.setdefault(name, at):
                both = sorted(set(devices) & set(beat.devices))
                raise Fenced(
                    f"controller {controller.component}: expected no other controller of {', '.join(both)}, got {name}"
                    f" (group {beat.group or name}), which is alive: each would execute every command. Stop it, or"
                    " start this one in its group"
                )
        clock.sleep(_LOOK)
    return False


def _rivals(
    controller: Controller, devices: Collection[str], connection: Connection
) -> dict[str, tuple[HeartbeatMessage, float]]:
    components = Components()
    for record in newest_records(connection, TOPIC, _RECENT):
        beat = decode_heartbeat(record.value)
        if isinstance(beat, HeartbeatMessage):
            components.fold(beat, record.timestamp_us)
    now, own = connection.clock.now(), controller.group
    return {
        name: (beat, at)
        for name, (beat, at) in components.newest.items()
        if now - at <= SILENT and (beat.group or name) != own and not set(devices).isdisjoint(beat.devices)
    }
