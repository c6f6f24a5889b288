"""The records of a controller: acknowledgements and states, each sent until the bus has confirmed it.

`write` queues records behind earlier ones of the same device, and `confirm` waits until the bus has them all.

A report of a handler is on the bus before the handler continues. Only the final state of its command waits for the
outcome, and is posted right after it. They are on two partitions, so the outcome has a copy of the state.
"""

import json
import logging
import math
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from facade.flows.commands.messages import AckMessage, AckStatus, CommandMessage, ReportedState, ack_record
from facade.flows.commands.outcomes import FINAL
from facade.flows.commands.rules import FAULT
from facade.kernel.bus.port import Record, Writer
from facade.kernel.clock import FOREVER, NEVER, Clock, Duration, Time, as_duration
from facade.kernel.errors import BusError
from facade.sdk.controller.command_state import Event
from facade.sdk.controller.execution_state import Cancelled, Execution, Posted, Reports
from facade.sdp.device_state import OBS_STATE, DeviceStates, StateMessage, state_record

_log = logging.getLogger(__name__)

_CONFIRM = 2.0
"""Longest wait for the bus to confirm a record before it is sent again [s]."""
_RETRY = 0.2
"""Pause before that [s]."""
_LONGEST_TEXT = 10_000
_LONGEST_REMAINING = 86_400.0
_LONGEST_RESULT = 524_288
"""Longest result [bytes of JSON]; a record that the bus always refuses would block its device."""
_LONGEST_VALUE = 262_144
"""Longest value, by the messages' schemas."""
_AROUND = 1024
"""Size of a record's headers and Kafka's own fields [bytes]."""
_LONGEST_STATES = 65_536
"""Most bytes of states in an outcome; for longer ones a confirmation is awaited."""

Wait = Callable[[threading.Event, float], object]


class ReportedStates:
    """The last states reported by this controller; may be used from several threads.

    A state of a killed or suspended controller may arrive after a newer one of the device's next owner. The topic is
    compacted, so the older state would stay. The newer one is then written again.
    """

    def __init__(self) -> None:
        self._reported: dict[tuple[str, str], tuple[StateMessage, bool]] = {}
        """By device and attribute: the last report, and whether it was read from the log."""
        self._lock = threading.Lock()

    def add(self, message: StateMessage) -> None:
        """Note a state before it is written."""
        with self._lock:
            self._reported[message.device, message.attribute] = message, False

    def is_older(self, state: StateMessage) -> bool:
        """Return whether a state on the log is older than the own report."""
        with self._lock:
            own = self._reported.get((state.device, state.attribute))
            return own is not None and state.time < own[0].time

    def read(self, state: StateMessage) -> StateMessage | None:
        """Process a state of the log; return a newer own state that must be written again."""
        key = (state.device, state.attribute)
        with self._lock:
            if (own := self._reported.get(key)) is None:
                return None
            message, there = own
            if state.time > message.time:
                del self._reported[key]  # another controller has reported a newer one
            elif state == message:
                self._reported[key] = message, True
            elif there and state.time < message.time:
                self._reported[key] = message, False
                return message
            return None

    def hidden_by(self, record_key: bytes | None) -> list[StateMessage]:
        """Process a record that does not count; return the own state of its key that must be written again."""
        key = (record_key or b"").decode(errors="replace").rpartition("/")[::2]
        with self._lock:
            message, there = self._reported.get(key, (None, False))
            if message is None or not there:
                return []
            self._reported[key] = message, False
            return [message]


class Outbox:
    """Writes for all devices of one controller."""

    def __init__(
        self,
        component: str,
        writer: Writer,
        states: DeviceStates,
        *,
        clock: Clock,
        most_bytes: Mapping[str, int] = {},
        wait: Wait = threading.Event.wait,
    ) -> None:
        self.states = states
        self.reported_states = ReportedStates()
        self._component = component
        self.writer = writer
        self._clock = clock
        self._most_bytes = most_bytes
        self._wait = wait
        self._left: list[Reports] = []
        """Reports with states that were left to an outcome since the last call of `post_left`."""
        self._posting = threading.RLock()  # a test's bus may call back
        self.closed = False
        """Set before the process ends: nothing is repeated then."""
        self.stopping: Callable[[], bool] = lambda: False
        """Returns whether the calling thread must not repeat anything, as the process is to end."""
        self._is_left = False
        """Whether something was left to the next start: then what would follow it is left as well."""

    def _insist(self, attempt: Callable[[], None], until: Time = FOREVER) -> bool:
        """Repeat an attempt until it succeeds; False at a time, or at the end."""
        while not (self._is_left and self._ends()):
            try:
                attempt()
            except BusError as error:
                _log.warning("the bus did not confirm, trying again: %s", error)
                if self.now_us() > until:
                    return False
                self._is_left = self._is_left or self._ends()
                self._clock.sleep(_RETRY)
            else:
                return True
        return False

    def _ends(self) -> bool:
        return self.closed or self.stopping()

    def ack(self, message: CommandMessage, status: AckStatus, text: str = "", result: Any = None) -> AckMessage:
        """Make an acknowledgement."""
        try:
            if (length := len(written := msgspec.json.encode(result))) > _LONGEST_RESULT:
                raise ValueError(f"expected at most {_LONGEST_RESULT} bytes, got {length}")
            if result is not None and written == b"null":  # no reader accepts an outcome with this result
                raise ValueError(f"expected a finite number, got {result}")
        except (TypeError, ValueError, RecursionError) as error:
            text, result = f"{text} (its result cannot be written as JSON: {error})".strip(), None
        return AckMessage(
            id=message.id,
            device=message.device,
            command=message.command,
            status=status,
            time=self.now_us(),
            origin=self._component,
            text=_whole(text),
            result=result,
        )

    def report(self, reports: Reports, values: Mapping[str, str]) -> None:
        """Write states; see `facade.sdk.controller.call.Device.report`.

        The values are on the bus in order: a reader that sees the last one, usually obsState, finds the others.
        """
        kept: list[StateMessage] = []
        try:
            for name, value in values.items():
                message = StateMessage(
                    device=reports.device,
                    attribute=name,
                    value=value,
                    time=self._after_all_before(reports.device, name),
                    origin=self._component,
                    command=reports.cause,
                )
                self._keep(message)
                kept.append(message)
        finally:
            # Values before a wrong one are already known here, so they are sent all the same.
            records = [replace(state_record(message), headers=reports.headers) for message in kept]
            is_final = reports.reaches(values)
            if not (self.write(reports, records, kept, later=is_final) and (is_final or self.confirm(reports))):
                raise Cancelled("the controller ends, and the bus takes nothing")

    def report_fault(self, reports: Reports, text: str) -> None:
        """Write that a device is in FAULT, with the reason."""
        self.report(reports, {"errorMessages": json.dumps([_whole(text)]), OBS_STATE: FAULT})

    def write(
        self, reports: Reports, records: Sequence[Record], states: Sequence[StateMessage] = (), *, later: bool = False
    ) -> bool:
        """Queue records behind earlier ones of the same device; False at the end of the process.

        They are in `Reports.posted` until `confirm` has found them on the bus.

        Parameters
        ----------
        states
            The states in the records; an outcome that is written before the bus has them carries a copy.
        later
            Whether the records wait for the outcome, or for `post_left`.

        Raises
        ------
        ValueError
            A record is larger than its topic takes.
        """
        for record in records:
            most = self._most_bytes.get(record.topic, sys.maxsize) - _AROUND
            if (length := len(record.key or b"") + len(record.value or b"")) > most:
                raise ValueError(f"record for {record.topic}: expected at most {most} bytes, got {length}")
        with self._posting:
            while reports.posted and reports.posted[0].receipt is not None and reports.posted[0].receipt.confirmed:
                del reports.posted[0]
            reports.posted.append(Posted(records, None, states))
            if later:
                self._left.append(reports)
                return True
        return self._insist(lambda: self._post(reports))

    def post_left(self) -> None:
        """Post final states whose handlers have continued instead of returning."""
        with self._posting:
            left, self._left = self._left, []
        for reports in left:
            try:
                self._post(reports)
            except BusError:
                with self._posting:
                    self._left.append(reports)  # the next time, or with the outcome

    def confirm(self, reports: Reports, until: Time = FOREVER) -> bool:
        """Wait until all posted records of a device are on the bus; False at a time, or at the end of the process."""
        return self._insist(lambda: self._confirm(reports), until)

    def _confirm(self, reports: Reports) -> None:
        while reports.posted:
            self._post(reports)
            receipt = reports.posted[0].receipt
            assert receipt is not None
            try:
                receipt.wait(_CONFIRM)
            except BusError:
                with self._posting:
                    for posted in reports.posted:
                        posted.receipt = None  # later records must follow it again
                raise
            del reports.posted[0]

    def _post(self, reports: Reports) -> None:
        with self._posting:
            for posted in reports.posted:
                if posted.receipt is None:
                    posted.receipt = self.writer.post(posted.records)

    def conclude(self, reports: Reports, ack: AckMessage) -> bool:
        """Write an outcome, and wait until the bus has it together with all reports; False at the end."""
        assert ack.status in FINAL, f"{ack.id}: {ack.status} is no outcome, and none would follow"
        open_ = [posted for posted in reports.posted if posted.receipt is None or not posted.receipt.confirmed]
        states = {
            message.attribute: ReportedState(message.value, message.time)
            for posted in open_
            for message in posted.states
        }
        if sum(len(state.value) for state in states.values()) > _LONGEST_STATES:
            if not self.confirm(reports):
                return False
            open_, states = [], {}
        ack = msgspec.structs.replace(ack, states=states)
        reports.posted = [
            # ACCEPTED, after an outage: never after an outcome
            *(posted for posted in open_ if not posted.states),
            Posted([ack_record(ack, reports.headers)], None),
            *(posted for posted in open_ if posted.states),
        ]
        return self.confirm(reports)

    def record_again(self, messages: Sequence[StateMessage]) -> None:
        """Write states again that are missing on the log or followed by an older one; never over a newer one."""
        for message in messages:
            known = self.states.get(message.device, message.attribute)
            if known is None or known.time <= message.time:
                self.writer.send(state_record(message))

    def progress(self, execution: Execution, percent: float, remaining: float | None, text: str) -> None:
        """Acknowledge progress, without waiting for the bus."""
        if math.isnan(percent):
            raise ValueError("progress: expected a number from 0 to 100, got nan")
        if remaining is not None and math.isnan(remaining):
            raise ValueError("remaining: expected a number of seconds, or None, got nan")
        self.post_left()
        execution.command_state.happen(Event.PROGRESS)
        ack = msgspec.structs.replace(
            self.ack(execution.message, "IN_PROGRESS", text),
            progress=round(min(max(percent, 0), 100)),
            remaining=None if remaining is None else min(max(remaining, 0.0), _LONGEST_REMAINING),
        )
        if ack.remaining is not None:
            execution.extend(ack.time + as_duration(ack.remaining))
        self.writer.send(ack_record(ack, execution.headers))

    def wait(self, execution: Execution, seconds: float) -> None:
        """Let a handler wait [s].

        Raises
        ------
        Cancelled
            The command was aborted.
        """
        execution.check()
        self.post_left()
        self._wait(execution.cancelled, seconds)
        execution.check()

    def now_us(self) -> Time:
        """Return the time."""
        return self._clock.now_us()

    def _after_all_before(self, device: str, attribute: str) -> Time:
        """Return the time of a new value, which is later than the last one also if the clock was set back."""
        before = self.states.get(device, attribute)
        return max(self.now_us(), NEVER if before is None else before.time + Duration(1))

    def _keep(self, message: StateMessage) -> None:
        if len(message.value) > _LONGEST_VALUE:
            raise ValueError(
                f"{message.attribute}: expected at most {_LONGEST_VALUE} characters, got {len(message.value)}"
            )
        try:
            message.value.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"{message.attribute}: expected text of whole characters: {error}") from error
        try:
            self.states.set(message)
            self.reported_states.add(message)
        except KeyError:
            raise ValueError(f"{message.device}: the ICD has no reported attribute {message.attribute!r}") from None


def _whole(text: str) -> str:
    """Cut a text, and escape lone surrogates, as in file names that are not UTF-8."""
    return text.encode(errors="backslashreplace").decode()[:_LONGEST_TEXT]
