"""What a controller reads: the commands for its devices, and what has been said of them before."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from facade.bus.dead_letters import dead_letter
from facade.bus.port import Reader, Record, Writer
from facade.codec.decode import BatchDecoder
from facade.codec.json_schema import compile_message
from facade.controller.past import Past
from facade.flows.commands.messages import ACKS, CommandMessage, decode_command, reported
from facade.icd.model import Icd
from facade.outcome import Rejected, Suppressed, Unused
from facade.runtime.accounts import StreamAccount
from facade.runtime.device_state import TOPIC as STATES
from facade.runtime.device_state import DeviceStates

_READ = 10_000


class Bus(Protocol):
    """Where the past is read and the outcomes are written."""

    def open_reader(self, topics: Mapping[str, Sequence[int] | None], start: Mapping[str, Mapping[int, int]]) -> Reader:
        """Read topics from given offsets on, or else from their beginning."""

    def writer(self) -> Writer:
        """Return the writer."""


class Intake:
    """Reads commands; a record that is none is counted, and set aside if it is broken.

    Parameters
    ----------
    devices
        Devices whose commands are wanted; those of others are left to their controllers.
    """

    def __init__(self, icd: Icd, devices: Sequence[str], writer: Writer, account: StreamAccount, *, by: str) -> None:
        self._devices = frozenset(devices)
        self._writer = writer
        self._account = account
        self._by = by
        self._decoder = BatchDecoder(compile_message("command", icd.messages["command"]))

    def read(self, record: Record) -> CommandMessage | None:
        """Return the command of a record; None: something else became of the record."""
        self._account.consumed += 1
        found = self._command(record)
        if isinstance(found, CommandMessage):
            return found
        self._account.settle(found)
        if isinstance(found, Rejected):
            self._writer.send(dead_letter(record, found, by=self._by))
        return None

    def _command(self, record: Record) -> CommandMessage | Unused:
        if isinstance(unused := self._decoder.decode_one(record.value), Suppressed | Rejected):
            return unused
        message = decode_command(record.value or b"")
        if record.key != message.device.encode():
            key = (record.key or b"").decode(errors="replace")
            return Rejected("key", "$.device", f"expected the record's key {key!r:.80}, got {message.device!r}")
        return message if message.device in self._devices else Suppressed("other-device")


class _Origin(msgspec.Struct):
    """As much of a message as tells who wrote it."""

    origin: str = ""


_decode_origin = msgspec.json.Decoder(_Origin).decode


class Memory:
    """Follows the acknowledgements and the states; all that a controller knows from before is there."""

    def __init__(self, bus: Bus, past: Past, states: DeviceStates, *, component: str) -> None:
        self._bus = bus
        self._past = past
        self._states = states
        self._component = component
        self._reader: Reader | None = None
        self._next: dict[str, dict[int, int]] = {ACKS: {}, STATES: {}}
        """Offset to read on from, by topic and partition."""
        self._complete = False

    def catch_up(self, timeout: float) -> bool:
        """Read on for a while; tell whether everything was read that stood there when this began.

        Raises
        ------
        BusError
            The topics cannot be read now.
        """
        if self._reader is None:
            self._reader = self._bus.open_reader({ACKS: None, STATES: None}, self._next)
        self.follow(timeout)
        done = self._reader.caught_up(ACKS) and self._reader.caught_up(STATES)
        self._complete |= done
        return done

    def follow(self, timeout: float) -> None:
        """Read on."""
        for record in () if self._reader is None else self._reader.take(_READ, timeout):
            self._next[record.topic][record.partition] = record.offset + 1
            if record.topic == ACKS:
                self._take_ack(record)
            elif not (self._complete and self._is_own(record)):
                self._states.fold(record, count=False)

    def _take_ack(self, record: Record) -> None:
        ack = self._past.fold(record)
        if ack is not None and ack.states and not (self._complete and ack.origin == self._component):
            self._states.acknowledge(reported(ack), record.timestamp_us)

    def begin_anew(self) -> None:
        """Have `catch_up` read to where the topics end by then."""
        self.close()

    def close(self) -> None:
        """Stop reading."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _is_own(self, record: Record) -> bool:
        """Tell our own reports, which are known already: an older one must not undo a newer one."""
        try:
            return _decode_origin(record.value or b"").origin == self._component
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
