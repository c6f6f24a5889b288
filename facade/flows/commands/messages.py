"""The records of the command path; their wire forms are the JSON Schemas of the same names.

Times are Unix times in microseconds, as in every message of the bus.
"""

from typing import Any, Literal

import msgspec

from facade.bus.port import Headers, Record
from facade.runtime.device_state import StateMessage

COMMANDS, ACKS, HEARTBEATS = "commands", "command-acks", "heartbeats"
"""Topics, by their names in the ICD."""

AckStatus = Literal["ACCEPTED", "IN_PROGRESS", "COMPLETED", "FAILED", "ABORTED", "REJECTED", "TIMED_OUT", "UNDELIVERED"]


class CommandMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="command/1"):
    """What TM wants of one device; ``command.schema.json``."""

    id: str
    device: str
    command: str
    argument: dict[str, Any] | None
    transaction_id: str
    issued: int
    not_after: int
    """Whoever has not begun by then must refuse."""
    deadline: int
    """When the facade gives up waiting, unless progress is reported."""
    ceiling: int
    """When it gives up whatever is reported."""
    repeatable: bool
    """Whether executing it a second time, after a crash, does no harm."""
    origin: str


class ReportedState(msgspec.Struct, frozen=True):
    """A value that a controller has reported on ``state`` as well."""

    value: str
    time: int


class AckMessage(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="schema", tag="command-ack/1"
):
    """What became, or is becoming, of a command; ``command-ack.schema.json``."""

    id: str
    device: str
    command: str
    status: AckStatus
    time: int
    origin: str
    remaining: float | None = None
    """With IN_PROGRESS: the time that is still needed [s]."""
    progress: int | None = None
    """How much is done [%]."""
    text: str = ""
    """What a person should know; for every outcome but COMPLETED, why."""
    result: Any = None
    states: dict[str, ReportedState] = {}
    """Reports of the command that may not be on ``state`` yet, by attribute: who sees the outcome sees them too."""


class HeartbeatMessage(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="schema", tag="heartbeat/1"
):
    """A sign of life of a controller or a device server; ``heartbeat.schema.json``."""

    component: str
    incarnation: str
    """Differs from one start of the component to the next."""
    devices: tuple[str, ...]
    """Devices whose commands it executes (a controller) or takes (a device server)."""
    time: int
    interval: float
    """Time until the next one [s]."""
    role: Literal["controller", "server"] = "controller"
    stopping: bool = False
    """Whether this is the last one of an orderly end."""
    version: str = ""


decode_command = msgspec.json.Decoder(CommandMessage).decode
decode_ack = msgspec.json.Decoder(AckMessage).decode
decode_heartbeat = msgspec.json.Decoder(HeartbeatMessage).decode


def command_id(issued_us: int, number: int, name: str) -> str:
    """Return an id in SKA's form: when, which, what."""
    return f"{issued_us / 1e6:.6f}_{number:012d}_{name}"


def issued(id: str) -> int:
    """Return when the command of an id was issued [Unix us]; 0 where it does not say."""
    try:
        return round(float(id.partition("_")[0]) * 1e6)
    except (ValueError, OverflowError):
        return 0


def command_record(command: CommandMessage, headers: Headers = ()) -> Record:
    """Return the record of a command: the commands of one device stay in order."""
    return Record(topic=COMMANDS, key=command.device.encode(), value=msgspec.json.encode(command), headers=headers)


def ack_record(ack: AckMessage, headers: Headers = ()) -> Record:
    """Return the record of an acknowledgement, on the partition of all those of the device."""
    return Record(topic=ACKS, key=ack.device.encode(), value=msgspec.json.encode(ack), headers=headers)


def reported(ack: AckMessage) -> list[StateMessage]:
    """Return the reports that came with an outcome, as they are on ``state`` or will be."""
    return [
        StateMessage(
            device=ack.device, attribute=name, value=state.value, time=state.time, origin=ack.origin, command=ack.id
        )
        for name, state in ack.states.items()
    ]


def heartbeat_record(heartbeat: HeartbeatMessage) -> Record:
    """Return the record of a sign of life."""
    return Record(topic=HEARTBEATS, key=heartbeat.component.encode(), value=msgspec.json.encode(heartbeat))
