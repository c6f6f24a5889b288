"""The topics that a controller reads: commands for its devices, acknowledgements and states of all."""

from collections.abc import Callable, Mapping, Sequence

from facade.flows.commands.messages import ACKS, AckMessage, CommandMessage, decode_ack, decode_command, reported
from facade.flows.commands.outcomes import BY_FACADE, COMPLETED, FINAL, SENT, TRANSITIONS
from facade.flows.commands.tracker import Tracker
from facade.kernel.bus.port import Reader, Record
from facade.kernel.codec.plausible import wrong_key
from facade.kernel.outcome import Suppressed, Unused
from facade.kernel.recent import Bounded
from facade.kernel.runtime.accounts import RunningAccount
from facade.sdk.controller.outbox import ReportedStates
from facade.sdp.device_state import TOPIC as STATES
from facade.sdp.device_state import DeviceStates, StateMessage, decode_state

_READ = 10_000
_KEPT = 5_000
"""Commands kept, of all devices; an order whose parent is older has long expired."""

OpenReader = Callable[[Mapping[str, Sequence[int] | None], Mapping[str, Mapping[int, int]]], Reader]
"""Reads topics from given offsets, or else from their beginning."""


class CommandReader:
    """Reads commands. Other records are counted. The device server reads the same topic, and writes dead letters.

    Parameters
    ----------
    devices
        Devices whose commands are executed here; other controllers execute the others.
    """

    def __init__(self, devices: Sequence[str], account: RunningAccount) -> None:
        self._devices = frozenset(devices)
        self._account = account

    def read(self, record: Record) -> CommandMessage | None:
        """Return the command of a record; None: it is not for these devices, or unreadable."""
        self._account.consumed += 1
        found = self._command(record)
        if isinstance(found, CommandMessage):
            return found
        self._account.settle(found)
        return None

    def _command(self, record: Record) -> CommandMessage | Unused:
        message = decode_command(record.value)
        if not isinstance(message, CommandMessage):
            return message
        if message.device not in self._devices:
            return Suppressed("other-device")
        return wrong_key(record.key, message.device, "$.device") or message


class ParentOrders:
    """The states of the newest commands, which may be parents of orders; may be used from several threads.

    A controller that ends a command ends its orders as well. After a kill it does not know them: the executor of an
    order finds here that its parent has ended.
    """

    def __init__(self) -> None:
        self._newest: Bounded[str, AckMessage] = Bounded(_KEPT)
        """The newest acknowledgement of each command that changed its state."""

    def fold(self, ack: AckMessage) -> None:
        """Process an acknowledgement of any command from the log."""
        before = self._newest.get(ack.id)
        if ack.status in TRANSITIONS[SENT if before is None else before.status] - BY_FACADE:
            self._newest[ack.id] = ack

    def why_ended(self, id: str) -> str:
        """Return the reason why the orders of a command are void; an empty text when they are valid."""
        ack = self._newest.get(id)
        return (
            ""
            if ack is None or ack.status not in FINAL - {COMPLETED}
            else f"{ack.command} {id}, which had given it, has ended"
        )


class CommandHistory:
    """Follows the acknowledgements and the states, beginning before the start of the controller."""

    def __init__(
        self,
        open_reader: OpenReader,
        tracker: Tracker,
        states: DeviceStates,
        reported: ReportedStates,
        *,
        component: str,
    ) -> None:
        self._open_reader = open_reader
        self._tracker = tracker
        self._states = states
        self._component = component
        self._reported = reported
        self.parent_orders = ParentOrders()
        self._overwritten: list[StateMessage] = []
        self._reader: Reader | None = None
        self._next: dict[str, dict[int, int]] = {ACKS: {}, STATES: {}}
        """Offset to continue from, by topic and partition."""
        self._complete = False

    def catch_up(self, timeout: float) -> bool:
        """Continue to read for a while; return whether the end at the begin of the call has been reached.

        Raises
        ------
        BusError
            The topics cannot be read now.
        """
        if self._reader is None:
            self._reader = self._open_reader({ACKS: None, STATES: None}, self._next)
        self.follow(timeout)
        done = self._reader.caught_up(ACKS) and self._reader.caught_up(STATES)
        self._complete |= done
        return done

    def follow(self, timeout: float) -> None:
        """Continue to read."""
        for record in () if self._reader is None else self._reader.take(_READ, timeout):
            self._next[record.topic][record.partition] = record.offset + 1
            if record.topic == ACKS:
                self._take_ack(record)
            else:
                self._take_state(record)

    def _take_state(self, record: Record) -> None:
        if self._states.signatures.refusal(record) is not None:
            # Of a key, the topic will only keep this record, which no reader takes.
            self._overwritten += self._reported.hidden_by(record.key)
            return
        state = decode_state(record.value)
        if not isinstance(state, StateMessage):
            return
        if (behind := self._reported.read(state)) is not None:
            self._overwritten.append(behind)
        # Own states are known after the first pass: an older one must not undo a newer one.
        if not (self._complete and (state.origin == self._component or self._reported.is_older(state))):
            self._states.fold(record, count=True)

    def overwritten(self) -> list[StateMessage]:
        """Return our own newest states, once, if an older one was read after them."""
        found, self._overwritten = self._overwritten, []
        return found

    def _take_ack(self, record: Record) -> None:
        ack = decode_ack(record.value)
        if not isinstance(ack, AckMessage) or wrong_key(record.key, ack.device, "$.device") or ack.withdrawer:
            return
        if self._states.signatures.refusal(record) is not None:
            return
        self._tracker.fold_ack(ack, 0.0)
        self.parent_orders.fold(ack)
        if ack.states and not (self._complete and ack.origin == self._component):
            self._states.acknowledge(reported(ack), record.timestamp_us)

    def close(self) -> None:
        """Stop reading; the next `catch_up` reads to the end of the topics at that time."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None
