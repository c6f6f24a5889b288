"""Admits the orders of controllers: a device server checks each one, and puts it on ``commands``.

Only device servers write ``commands``, so each record there was checked by one: it came by Tango, or is an order that
passed the rules here. Controllers write orders to ``orders``. An order is admitted if

* its parent is on ``commands``, has been begun, and has no outcome,
* the interface lets the parent order this command,
* a controller of the parent's device gives it, by the heartbeats and, if that device has a key, by its signature,
* a second person has approved the parent, if the deployment wants one for the ordered command.

Records of several topics have no order, so an order may wait for its parent for a moment. Then it is REJECTED, and is
among the refused commands. An order that is too late to begin is forgotten, as its giver ends it.

All state follows from the log. After a restart the topics are read again. An order that is on ``commands`` by then is
not put there twice; if it is, its id is the same, and no controller executes an id twice.
"""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from facade.flows.commands.arguments import DEEPEST, Arguments
from facade.flows.commands.flow import Components
from facade.flows.commands.messages import (
    AckMessage,
    CommandMessage,
    ack_record,
    command_record,
    is_order_id,
)  # fmt: skip
from facade.flows.commands.outcomes import FINAL, SENT, TRANSITIONS
from facade.flows.commands.refused import NOT_ALLOWED, Refusals
from facade.kernel import tracing
from facade.kernel.bus.port import Headers, Record
from facade.kernel.bus.signatures import Signatures
from facade.kernel.clock import Clock
from facade.kernel.codec.plausible import wrong_key
from facade.kernel.errors import ArgumentError, CommandRefused
from facade.kernel.icd.model import CommandDefinition, Icd
from facade.kernel.outcome import USED, Outcome, RecordRejected, Suppressed
from facade.kernel.recent import Bounded
from facade.sdp.replay import why_refused

_log = logging.getLogger(__name__)

_PATIENCE = 3.0
"""Time for the parent of an order to be read, and for a heartbeat of its controller [s]."""
_AGAIN = 5.0
"""Time after which an admitted order is written again, if it has not come back [s]."""
_MOST_WAITING = 1000
"""Most orders that wait; SDP gives one to each subarray and its workers."""
_LONGEST_TEXT = 10_000
_KEPT = 5_000
"""Commands and acknowledgements remembered; older ones have long ended."""


@dataclass(slots=True)
class _Waiting:
    """An order that is not on ``commands``."""

    order: CommandMessage
    record: Record
    read: float
    """[monotonic s], as `written`."""
    written: float = float("-inf")

    @property
    def headers(self) -> Headers:
        return tuple(header for header in self.record.headers if header[0] in tracing.TRACED)


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderAdmission:
    """The orders to some devices and executors; used by the event loop only, see `facade.kernel.runtime.event_loop`."""

    icd: Icd
    classes: Mapping[str, str]
    """Device class or executor of all devices of the deployment, by name."""
    own: frozenset[str]
    """Devices and executors whose orders this server admits."""
    arguments: Arguments
    components: Components
    refusals: Refusals
    signatures: Signatures
    approvals: frozenset[str]
    """Commands that wait for a second person, each as class and command."""
    post: Callable[[Record], None]
    """Queues a record without waiting."""
    why_not_now: Callable[[], str]
    """Returns the reason why this server may not write to ``commands`` now; empty: it may."""
    caught_up: Callable[[], bool]
    """Whether all commands and acknowledgements on the bus have been read."""
    origin: str
    clock: Clock
    _waiting: dict[str, _Waiting] = field(default_factory=dict, init=False)
    _commands: Bounded[str, CommandMessage] = field(default_factory=lambda: Bounded(_KEPT), init=False)
    """Commands that may give orders, and admitted orders, without arguments."""
    _states: Bounded[tuple[str, str], str] = field(default_factory=lambda: Bounded(_KEPT), init=False)
    """State of each acknowledged command, by its device and id.

    With the device, as a signature proves no more: a controller can say anything about any id under its own device.
    """
    _closed: Bounded[str, None] = field(default_factory=lambda: Bounded(_KEPT), init=False)
    """Ids of orders that have ended without a record on ``commands``."""

    def fold(self, order: CommandMessage, record: Record) -> Outcome:
        """Process an order from the log; see `facade.kernel.runtime.flow.Flow.fold`."""
        if wrong := wrong_key(record.key, order.device, "$.device"):
            return wrong
        if not is_order_id(order.id, order.parent, order.device, order.command):
            what = f"expected an id that follows from the parent, device and command, got {order.id!r:.80}"
            return RecordRejected("id", "$.id", what)
        if order.device not in self.own:
            return Suppressed("other-device")
        has_ended = self._states.get((order.device, order.id)) in FINAL
        if order.id in self._commands or has_ended or order.id in self._waiting:
            return Suppressed("repeated")
        if self.clock.now_us() > order.not_after:
            return Suppressed("late")
        if len(self._waiting) >= _MOST_WAITING:
            return Suppressed("too-many")
        self._waiting[order.id] = _Waiting(order, record, self.clock.monotonic())
        return USED

    def note_command(self, command: CommandMessage) -> None:
        """Note a record of ``commands``, for any device."""
        self._waiting.pop(command.id, None)
        known = self._definition(command)
        matters = command.parent or (known is not None and known.orders)
        if matters and command.ceiling > self.clock.now_us():
            self._commands.setdefault(command.id, msgspec.structs.replace(command, argument=None))

    def note_ack(self, ack: AckMessage) -> bool:
        """Note an acknowledgement for any device; return whether it is one of an order that is not on ``commands``."""
        key = ack.device, ack.id
        if ack.status in TRANSITIONS[self._states.get(key, SENT)]:
            self._states[key] = ack.status
        waiting = self._waiting.get(ack.id)
        is_its = waiting is not None and waiting.order.device == ack.device
        if waiting is not None and is_its and waiting.written == float("-inf") and ack.status in FINAL:
            self._close(ack.id)
        return ack.id in self._closed

    def perform(self) -> None:
        """Admit or refuse what waits; see `facade.kernel.runtime.event_loop.PeriodicTask`."""
        if not self._waiting or why_refused(self.clock) or self.why_not_now():
            return
        now = self.clock.monotonic()
        for id, one in list(self._waiting.items()):
            if self.clock.now_us() > one.order.not_after:
                del self._waiting[id]
            elif not (why := self._objection(one)):
                if now - one.written > _AGAIN:
                    one.written = now
                    self.post(command_record(self._admitted(one.order), one.headers))
                    _log.info("order admitted id=%s device=%s parent=%s", id, one.order.device, one.order.parent)
            elif now - one.read > _PATIENCE and self.caught_up():
                self._refuse(one, why)

    def end(self) -> None:
        """Do nothing: what waits is read again."""

    def _objection(self, one: _Waiting) -> str:
        """Return the reason why an order is not admitted; empty: it is."""
        order = one.order
        parent, place = self._commands.get(order.parent), self._place(order)
        state = None if parent is None else self._states.get((parent.device, parent.id))
        if parent is None or state is None or state in FINAL:
            ended = ", which has ended" if state else ""
            return f"$.parent: expected a command that is being executed, got {order.parent!r:.200}{ended}"
        by = self._definition(parent)
        if by is None or place not in by.orders:
            return f"$.command: expected an order that {self._place(parent)} may give, got {place}"
        beat, _ = self.components.newest.get(order.origin, (None, 0.0))
        if beat is None or parent.device not in beat.devices:
            return f"$.origin: expected a controller of {parent.device}, got {order.origin!r:.80}"
        if unsigned := self.signatures.order_refusal(one.record, parent.device):
            return f"{unsigned.path}: {unsigned.detail}"
        if place in self.approvals and not parent.approver:
            return f"$.parent: {place} needs a second person: expected a parent that one approved, got {order.parent}"
        family = getattr(self._definition(order), "argument", None)
        if family is None:
            return "" if order.argument is None else "$.argument: expected none"
        try:
            self.arguments.check(family, json.dumps(order.argument))
        except ArgumentError as error:
            return str(error)
        except RecursionError:
            return f"$.argument: expected at most {DEEPEST} levels, got more than can be checked"
        return ""

    def _admitted(self, order: CommandMessage) -> CommandMessage:
        """Return the record for ``commands``: only what a giver may choose is the giver's."""
        parent = self._commands[order.parent]
        ceiling = min(order.ceiling, parent.ceiling)
        admitted = msgspec.structs.replace(
            order,
            transaction_id=parent.transaction_id,
            not_after=min(order.not_after, order.deadline, ceiling),
            deadline=min(order.deadline, ceiling),
            ceiling=ceiling,
            repeatable=getattr(self._definition(order), "repeatable", False),
            client="",
            operator="",
            approver=parent.approver,  # so that what this order leads to is approved as well
            approver_client=parent.approver_client,
        )
        times = admitted.not_after, admitted.deadline, admitted.ceiling, parent.ceiling
        assert list(times) == sorted(times), f"{order.id} would outlive its parent: {times}"
        return admitted

    def _refuse(self, one: _Waiting, why: str) -> None:
        order = one.order
        self._close(order.id)
        ack = AckMessage(
            id=order.id,
            device=order.device,
            command=order.command,
            status="REJECTED",
            time=self.clock.now_us(),
            origin=self.origin,
            text=f"order not admitted: {why}"[:_LONGEST_TEXT],
        )
        self.post(ack_record(ack, one.headers))
        refused = CommandRefused(NOT_ALLOWED, ack.text, self._place(order))
        try:
            argument = None if order.argument is None else json.dumps(order.argument)
        except RecursionError:  # it is refused for any reason
            argument = None
        client = f"controller {order.origin}"
        self.refusals.note(order.device, order.command, refused, argument=argument, client=client, operator="")

    def _close(self, id: str) -> None:
        del self._waiting[id]
        self._closed.setdefault(id, None)

    def _place(self, command: CommandMessage) -> str:
        return f"{self.classes.get(command.device, command.device)}.{command.command}"

    def _definition(self, command: CommandMessage) -> CommandDefinition | None:
        known = self.icd.commanded.get(self.classes.get(command.device, ""))
        return None if known is None else next((one for one in known.commands if one.name == command.command), None)
