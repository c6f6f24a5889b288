"""What a controller writes: acknowledgements and states, each sent until the bus has it."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from facade.bus.port import Headers, Record, Writer
from facade.clock import Clock
from facade.commands.controller import Call, Cancelled
from facade.commands.messages import AckMessage, AckStatus, CommandMessage, ack_record
from facade.device_state import DeviceStates, StateMessage, state_record
from facade.errors import BusError

_log = logging.getLogger(__name__)

_CONFIRM = 2.0
"""Longest wait for the bus to confirm a record before it is sent once more [s]."""
_RETRY = 0.2
"""Pause before that [s]."""
_LONGEST_TEXT = 10_000
_LONGEST_REMAINING = 86_400.0
_LONGEST_VALUE = 262_144
"""Bounds of the messages' schemas."""

Wait = Callable[[threading.Event, float], object]


class Outbox:
    """Writes for all devices of one controller; see `facade.commands.controller.Desk`."""

    def __init__(
        self, component: str, writer: Writer, states: DeviceStates, *, clock: Clock, wait: Wait = threading.Event.wait
    ) -> None:
        self.states = states
        self._component = component
        self._writer = writer
        self._clock = clock
        self._wait = wait
        self.closed = False
        """Set when the process is about to end: nothing is tried again then."""

    def insist(self, attempt: Callable[[], None], until_us: float = float("inf")) -> bool:
        """Do something with the bus until it succeeds; False if it did not by a time [Unix us], or before the end."""
        while True:
            try:
                attempt()
            except BusError as error:
                _log.warning("the bus did not confirm, trying again: %s", error)
                if self.closed or self._clock.now() * 1e6 > until_us:
                    return False
                self._clock.sleep(_RETRY)
            else:
                return True

    def ack(self, message: CommandMessage, status: AckStatus, text: str = "", result: Any = None) -> AckMessage:
        """Make an acknowledgement."""
        try:
            msgspec.json.encode(result)
        except (TypeError, ValueError, RecursionError) as error:
            text, result = f"{text} (its result cannot be written as JSON: {error})".strip(), None
        return AckMessage(
            id=message.id,
            device=message.device,
            command=message.command,
            status=status,
            time=self.now_us(),
            origin=self._component,
            text=text[:_LONGEST_TEXT],
            result=result,
        )

    def send(self, ack: AckMessage, headers: Headers, until_us: float = float("inf")) -> bool:
        """Write an acknowledgement durably; see `insist`."""
        return self._send(ack_record(ack, headers), until_us)

    def report(self, device: str, values: Mapping[str, str], command: str, headers: Headers) -> None:
        """Write states durably; see `facade.commands.controller.Device.report`.

        Whoever sees the last value, commonly obsState, finds the others on the bus: it is sent when they are there.
        """
        records: list[Record] = []
        try:
            for name, value in values.items():
                message = StateMessage(
                    device=device,
                    attribute=name,
                    value=value,
                    time=self.now_us(),
                    origin=self._component,
                    command=command,
                )
                records.append(replace(self._keep(message), headers=headers))
        finally:
            # What came before a value that is wrong is known here already, so it is sent all the same.
            if not self._send_states(records):
                raise Cancelled("the controller ends, and the bus takes nothing")

    def progress(self, call: Call, percent: float, remaining: float | None, text: str) -> None:
        """Acknowledge progress, without waiting for the bus."""
        call.in_progress = True
        ack = msgspec.structs.replace(
            self.ack(call.message, "IN_PROGRESS", text),
            progress=min(max(round(percent), 0), 100),
            remaining=None if remaining is None else min(max(remaining, 0.0), _LONGEST_REMAINING),
        )
        self._writer.send(ack_record(ack, call.headers))

    def wait(self, event: threading.Event, seconds: float) -> None:
        """Wait for an event, at most so long [s]."""
        self._wait(event, seconds)

    def now_us(self) -> int:
        """Give the time [Unix us]."""
        return round(self._clock.now() * 1e6)

    def _keep(self, message: StateMessage) -> Record:
        """Take a value over into the known states, and give the record that tells it."""
        if len(message.value) > _LONGEST_VALUE:
            raise ValueError(
                f"{message.attribute}: expected at most {_LONGEST_VALUE} characters, got {len(message.value)}"
            )
        try:
            self.states.set(message)
        except KeyError:
            raise ValueError(f"{message.device}: the ICD has no reported attribute {message.attribute!r}") from None
        return state_record(message)

    def _send_states(self, records: Sequence[Record]) -> bool:
        others = records[:-1]
        if others and not self.insist(lambda: self._writer.send_all_durably(others, _CONFIRM)):
            return False
        return all(self._send(last) for last in records[-1:])

    def _send(self, record: Record, until_us: float = float("inf")) -> bool:
        return self.insist(lambda: self._writer.send_durably(record, _CONFIRM), until_us)
