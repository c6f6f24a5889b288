"""Orders: commands that a controller gives to other controllers while it executes one.

An order is written to ``orders``. A device server admits it (`facade.flows.commands.admission`): then it is a record on
``commands`` like a command of TM, and has one outcome by the same rules. Its id follows from its parent, the command to
which it belongs: a handler that is repeated after a crash issues no order twice, but finds its outcome. Its times are
within those of the parent. If its parent is interrupted, the giver of the order writes ABORTED for it: a controller
that has not begun it finds that on the log, and one that executes it cancels it.
"""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from facade.flows.commands.messages import AckMessage, AckStatus, CommandMessage, issued, order_id, order_record
from facade.flows.commands.outcomes import FINAL, IN_PROGRESS
from facade.flows.commands.tracker import Tracker
from facade.kernel import tracing
from facade.kernel.bus.signatures import Signatures
from facade.kernel.clock import NOTHING, SECOND, Clock, Time, as_duration
from facade.kernel.errors import ArgumentError, BusError
from facade.kernel.icd.model import CommandDefinition, Icd
from facade.sdk.controller.execution_state import Execution, NotFollowed, Order, OrderOutcome, Reports
from facade.sdk.controller.outbox import Outbox

if TYPE_CHECKING:
    from facade.flows.commands.arguments import Arguments

_log = logging.getLogger(__name__)

_TENTHS = 9
"""Tenths of the parent's remaining time for an order; the rest is for the parent's own outcome."""
_RESERVE = SECOND
"""The rest, where progress has moved the deadline of an order."""
_SEND = 1.0
"""Longest wait for the confirmation of orders before they are sent again [s]."""
_RETRY = 0.2
"""Pause before that [s]."""
_LOOK = 0.01
"""Time between two checks of the outcomes of orders [s]."""


class Orders:
    """Issues the orders of one controller; may be used from several threads.

    Parameters
    ----------
    devices
        Device class or executor of the possible receivers, by name.
    tracker
        Follows the acknowledgements of these devices.
    signatures
        By which an order proves that a controller of its parent's device gives it.
    """

    def __init__(
        self,
        icd: Icd,
        devices: Mapping[str, str],
        tracker: Tracker,
        outbox: Outbox,
        *,
        component: str,
        clock: Clock,
        signatures: Signatures,
    ) -> None:
        self._icd = icd
        self._devices = devices
        self._commands = {
            name: {command.name: command for command in icd.commanded[name].commands} for name in set(devices.values())
        }
        self._tracker = tracker
        self._outbox = outbox
        self._component = component
        self._clock, self._signatures = clock, signatures
        self._checked: Arguments | None = None
        self.waiting = 0
        """Number of handlers that wait for outcomes. It need not be exact, as it only sets the interval of checks."""

    def devices(self, name: str) -> list[str]:
        """Return the devices of a class, or the executors of a name, in this deployment."""
        return sorted(device for device, one in self._devices.items() if one == name)

    def give(self, execution: Execution, wanted: Iterable[tuple[str, str, Mapping[str, Any] | None]]) -> list[Order]:
        """Write orders to the bus together; see `facade.sdk.controller.call.Call.order`."""
        counts = dict(execution.order_counts)
        orders = [Order(self._message(execution, counts, *one)) for one in wanted]
        execution.check()
        execution.order_counts.update(counts)
        execution.given += orders  # before they are sent: orders that may be on the bus end with the parent
        self._send(execution, [order for order in orders if self._newest(order) is None])
        return orders

    def outcome(self, order: Order) -> OrderOutcome | None:
        """Return the outcome of an order; None: there is none yet."""
        message, ack = order.message, self._newest(order)
        if ack is not None and ack.status in FINAL:
            return OrderOutcome(message.device, message.command, order.id, ack.status, ack.text, ack.result)
        if order.undelivered and ack is None:
            return OrderOutcome(message.device, message.command, order.id, "UNDELIVERED", order.undelivered)
        return None

    def collect(self, execution: Execution, orders: Sequence[Order]) -> list[OrderOutcome]:
        """Wait for the outcomes of orders; see `facade.sdk.controller.call.Call.collect`."""
        self.waiting += 1
        try:
            while open_ := [order for order in orders if self.outcome(order) is None]:
                for order in open_:
                    if self._outbox.now_us() > self._deadline(execution, order):
                        self._end(execution, order, "TIMED_OUT", self._waited(order))
                self._outbox.wait(execution, _LOOK)
        finally:
            self.waiting -= 1
        return [found for order in orders if (found := self.outcome(order)) is not None]

    def abort(self, execution: Execution, why: str) -> None:
        """End all orders of a command without an outcome, after the command has ended."""
        for order in execution.given:
            if self.outcome(order) is None:
                self._end(execution, order, "ABORTED", why)

    def _message(
        self,
        execution: Execution,
        counts: dict[tuple[str, str], int],
        device: str,
        name: str,
        argument: Mapping[str, Any] | None,
    ) -> CommandMessage:
        command = self._command(execution, device, name)
        checked = self._argument(command, argument)
        parent, now_us = execution.message, self._outbox.now_us()
        number = counts[device, name] = counts.get((device, name), 0) + 1
        left = max(execution.deadline - now_us, NOTHING)
        id = order_id(parent.id, device, name, number)
        deadline = now_us + min(as_duration(command.deadline), left * _TENTHS // 10)
        return CommandMessage(
            id=id,
            device=device,
            command=name,
            argument=checked,
            transaction_id=parent.transaction_id,
            issued=issued(id),
            not_after=min(now_us + as_duration(command.start_within), deadline),
            deadline=deadline,
            ceiling=max(min(now_us + as_duration(command.ceiling), parent.ceiling), deadline),
            repeatable=command.repeatable,
            origin=self._component,
            parent=parent.id,
        )

    def _command(self, execution: Execution, device: str, name: str) -> CommandDefinition:
        if device == execution.device:
            raise ValueError(f"{device}: expected another device, got the one that waits for the order")
        if device not in self._devices:
            known = ", ".join(sorted(set(self._devices.values()))) or "none; name them as orders= of the controller"
            raise ValueError(f"order: expected a device or executor of {known}, got {device!r:.80}")
        commands = self._commands[self._devices[device]]
        if name not in commands:
            raise ValueError(f"order to {device}: expected one of {', '.join(commands)}, got {name!r:.80}")
        return commands[name]

    def _argument(self, command: CommandDefinition, argument: Mapping[str, Any] | None) -> dict[str, Any] | None:
        if command.argument is None:
            if argument is not None:
                raise ValueError(f"order {command.name}: expected no argument, got one")
            return None
        if self._checked is None:
            # The import is slow, and most controllers issue no orders.
            from facade.flows.commands.arguments import arguments_of

            self._checked = arguments_of(self._icd)
        try:
            return self._checked.check(command.argument, json.dumps(argument)).document
        except ArgumentError as error:
            raise ValueError(f"order {command.name}: {error}") from error

    def _send(self, execution: Execution, orders: Sequence[Order]) -> None:
        """Write orders until the bus has confirmed them, or it is too late for them to begin."""
        headers = tracing.current() or execution.headers
        unsigned, now = [order_record(order.message, headers) for order in orders], self._outbox.now_us()
        records = [replace(one, headers=self._signatures.sign_order(one, execution.device, now)) for one in unsigned]
        while records:
            try:
                self._outbox.writer.send_all_durably(records, _SEND)
            except BusError as error:
                _log.warning("orders of %s not confirmed, trying again: %s", execution.id, error)
                if self._outbox.now_us() > min(order.message.not_after for order in orders):
                    for order in orders:
                        order.undelivered = f"the bus did not confirm it in time: {error}"
                    return
                self._outbox.wait(execution, _RETRY)
            else:
                for order in orders:
                    _log.info("order given id=%s device=%s parent=%s", order.id, order.message.device, execution.id)
                return

    def _newest(self, order: Order) -> AckMessage | None:
        return self._tracker.newest(order.message.device, order.id)

    def _deadline(self, execution: Execution, order: Order) -> Time:
        """Return the end of the wait for an outcome: progress moves it, within the times of the parent."""
        message, ack = order.message, self._newest(order)
        until = message.deadline
        if ack is not None and ack.status == IN_PROGRESS and ack.remaining is not None:
            until = min(max(until, ack.time + as_duration(ack.remaining)), message.ceiling)
        return min(until, max(message.deadline, execution.deadline - _RESERVE))

    def _waited(self, order: Order) -> str:
        known = self._newest(order)
        seen = "nobody has acknowledged it" if known is None else f"{known.origin} has said {known.status}"
        return f"no outcome in time, {seen}; whether it took effect is not known"

    def _end(self, execution: Execution, order: Order, status: AckStatus, text: str) -> None:
        """Write the outcome of an order; the log may already have another one."""
        ack = self._outbox.ack(order.message, status, text)
        if self._outbox.conclude(Reports(ack.device, headers=execution.headers), ack):
            self._tracker.note(ack)


def require(outcomes: Sequence[OrderOutcome]) -> None:
    """Require that all orders were followed."""
    failed = [one for one in outcomes if not one.completed]
    if failed:
        followed = len(outcomes) - len(failed)
        raise NotFollowed(f"{'; '.join(map(str, failed))}; {followed} of {len(outcomes)} followed")
