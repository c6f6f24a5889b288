"""The records of the command path; their wire forms are the JSON Schemas of the same names.

Times are Unix times in microseconds, as in every message of the bus.
"""

import hashlib
from dataclasses import replace

import msgspec

from facade.kernel.bus.port import Headers, Record
from facade.kernel.clock import NEVER, Duration, Time, as_seconds, as_time
from facade.kernel.codec.decode import BatchDecoder
from facade.kernel.runtime import heartbeats
from facade.kernel.runtime.heartbeats import HeartbeatMessage as HeartbeatMessage
from facade.sdp import messages
from facade.sdp.device_state import StateMessage
from facade.sdp.messages import ReportedState as ReportedState

COMMANDS, ACKS, HEARTBEATS = "commands", "command-acks", heartbeats.TOPIC
ORDERS, REFUSALS, HELD_COMMANDS = "orders", "command-refusals", "commands-held"

AckStatus = messages.CommandAckStatus
CommandMessage = messages.Command
AckMessage = messages.CommandAck
RefusalMessage = messages.CommandRefusal

_MOST_ORDERS = 10_000
"""Most equal orders of one parent."""

decode_command = BatchDecoder(CommandMessage).decode_one
decode_ack = BatchDecoder(AckMessage).decode_one
decode_refusal = BatchDecoder(RefusalMessage).decode_one
decode_held = BatchDecoder[CommandMessage | AckMessage](CommandMessage, AckMessage).decode_one
"""A command that waits for a second person, or the outcome of one that was not approved."""


def command_id(issued: Time, number: int, name: str) -> str:
    """Return an id in SKA's form: time, number, name."""
    return f"{as_seconds(issued):.6f}_{number:012d}_{name}"


def issued(id: str) -> Time:
    """Return the issue time of a command by its id; 0: the id has none."""
    try:
        return as_time(float(id.partition("_")[0]))
    except (ValueError, OverflowError):
        return NEVER


def order_id(parent: str, device: str, command: str, number: int) -> str:
    """Return the id of the order `number` of its kind; it is the same when its parent is executed again."""
    digest = hashlib.sha256(f"{parent}/{device}/{command}/{number}".encode()).digest()
    # By its id, as the ids of states are compared by the time in them.
    return command_id(issued(parent) + Duration(number), int.from_bytes(digest[:8]) % 10**12, command)


def is_order_id(id: str, parent: str, device: str, command: str) -> bool:
    """Return whether an id belongs to this order: it follows from these values, so a giver cannot choose it."""
    number = int(issued(id) - issued(parent))
    return 1 <= number <= _MOST_ORDERS and id == order_id(parent, device, command, number)


def given_by(operator: str, client: str) -> str:
    """Return the issuer of a command for people, such as ``ann, from 10.0.0.7, process 4242``."""
    return ", from ".join(filter(None, (operator, client)))


def command_record(command: CommandMessage, headers: Headers = ()) -> Record:
    """Return the record of a command: the commands of one device stay in order."""
    return Record(topic=COMMANDS, key=command.device.encode(), value=msgspec.json.encode(command), headers=headers)


def order_record(order: CommandMessage, headers: Headers = ()) -> Record:
    """Return the record of an order, which a device server puts on ``commands`` if it may be given."""
    return replace(command_record(order, headers), topic=ORDERS)


def held_record(command: CommandMessage, headers: Headers = ()) -> Record:
    """Return the record of a command that waits for a second person: no controller reads its topic."""
    return replace(command_record(command, headers), topic=HELD_COMMANDS)


def unapproved_record(ack: AckMessage, headers: Headers = ()) -> Record:
    """Return the outcome of a command that waited and was not approved, behind the command: only device servers do."""
    return replace(ack_record(ack, headers), topic=HELD_COMMANDS)


def ack_record(ack: AckMessage, headers: Headers = ()) -> Record:
    """Return the record of an acknowledgement, on the partition of its device."""
    return Record(topic=ACKS, key=ack.device.encode(), value=msgspec.json.encode(ack), headers=headers)


def refusal_record(refusal: RefusalMessage) -> Record:
    """Return the record of a command that a device refused."""
    return Record(topic=REFUSALS, key=refusal.device.encode(), value=msgspec.json.encode(refusal))


def reported(ack: AckMessage) -> list[StateMessage]:
    """Return the reports that came with an outcome; the same are, or will be, on ``state``."""
    return [
        StateMessage(
            device=ack.device, attribute=name, value=state.value, time=state.time, origin=ack.origin, command=ack.id
        )
        for name, state in ack.states.items()
    ]
