"""Controllers of SDP: handlers by command name, and the call that each handler gets.

A handler does what the command asks, reports the new state, and returns. `facade.controller.execution`
keeps the rules that every controller must obey; a handler need not know them.

    controller = Controller("my-subarrays", "SdpSubarray")

    @controller.command("Configure")
    def configure(call: Call) -> None:
        call.report(obsState="CONFIGURING")
        ...
        call.report(obsState="READY", scanType=call.argument["scan_type"])
"""

import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from facade.bus.port import Headers, Record
from facade.controller.life import Life
from facade.errors import ConfigError
from facade.flows.commands.messages import CommandMessage
from facade.icd.model import Command, Icd

if TYPE_CHECKING:
    from facade.controller.orders import Order, OrderOutcome, Orders
    from facade.controller.outbox import Outbox, Posted


class Rejected(Exception):
    """A handler raises it to refuse a command before it has changed anything. The text gives the reason."""


class Cancelled(BaseException):
    """The SDK raises it in a handler whose command was aborted, or whose process is about to end.

    It is not an `Exception`, so that a handler's own ``except Exception`` does not catch it.
    """


class Place(NamedTuple):
    """Where the record of a command is."""

    partition: int
    offset: int
    assigned: int = 0
    """The number with which the partition was assigned; see `facade.bus.port.GroupMember`."""


class Device:
    """A device of a controller: it gives the values that were reported last, and reports new ones."""

    def __init__(self, device: str, outbox: "Outbox", cause: str = "", headers: Headers = ()) -> None:
        self.device = device
        """Name of the Tango device."""
        self.cause = cause
        """Id of the command that causes the reports."""
        self.headers = headers
        """Headers of the command that its records pass on, such as the trace."""
        self.posted: list[Posted] = []
        """Records about it that the bus has not confirmed, in order."""
        self._outbox = outbox

    def reported(self, attribute: str, default: Any = None) -> Any:
        """Return the value of an attribute that was reported last, also by an earlier run of the controller.

        Parameters
        ----------
        attribute
            Name of a reported attribute of the ICD.
        default
            Returned if the attribute was never reported.

        Returns
        -------
        str, float or tuple of str
            The value, by the type of the attribute.
        """
        reported = self._outbox.states.get(self.device, attribute)
        return default if reported is None else reported.value

    def report(self, **values: Any) -> None:
        """Report attributes of the device: ``call.report(obsState="READY", scanID=0)``.

        The call returns when all in-sync replicas have the values. The final state of the command, as the ICD
        says, is an exception: it is sent together with the outcome, and the call does not wait for it.

        Parameters
        ----------
        **values
            Value by the name of the attribute: a text, a label, a number, None, a list or a dict.

        Raises
        ------
        ValueError
            The ICD has no such reported attribute, or does not allow the value. Nothing was sent.
        Cancelled
            The command was aborted, or the controller ends.
        """
        texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}
        self._outbox.report(self, texts)

    def publish(self, *records: Record) -> None:
        """Write records of other topics, such as the states of processing blocks, with the trace of the command.

        The call returns when all in-sync replicas have the records.

        Raises
        ------
        Cancelled
            The controller ends while the bus takes no records.
        """
        for record in records:
            self._outbox.post(self, replace(record, headers=(*record.headers, *self.headers)))
        self.confirm()

    def confirm(self) -> None:
        """Wait until all in-sync replicas have all reports, the final state included.

        Raises
        ------
        Cancelled
            The controller ends while the bus takes no records.
        """
        if not self._outbox.confirm(self):
            raise Cancelled("the controller ends, and the bus takes nothing")

    def claim(self) -> None:
        """Make sure that this controller may still tell states of it; see `Call.claim`."""

    def reaches(self, values: Mapping[str, str]) -> bool:
        """Return whether values have the final state of a command; a device without a command has none."""
        return False


class Call(Device):
    """A command that is being executed. Its handler gets it as the only argument."""

    def __init__(
        self,
        message: CommandMessage,
        headers: Headers,
        place: Place,
        outbox: "Outbox",
        goal: tuple[str, tuple[str, ...]] = ("", ()),
        orders: "Orders | None" = None,
    ) -> None:
        super().__init__(message.device, outbox, message.id, headers)
        self.message = message
        """The command as it is on the bus, with its times."""
        self.place = place
        self.goal = goal
        """The final state by the ICD: an attribute, and the labels that it may have then."""
        self.life = Life()
        self.deadline = message.deadline
        """When clients stop waiting for the outcome [Unix us]. Progress moves it."""
        self.places: dict[tuple[str, str], int] = {}
        """Number of orders given so far, by device and command. The ids of orders follow from it."""
        self.given: list[Order] = []
        self.taken_back = False
        """Whether it is an order that its giver has ended."""
        self.is_ours: Callable[[Call], bool] = lambda call: True
        """Finds out whether no other controller can have begun the command since."""
        self.moved = False
        """Whether another controller may have begun it."""
        self.proven = 0.0
        """When its partition was this controller's last, as far as was asked [monotonic s]."""
        self._orders = orders
        self._cancelled = threading.Event()
        self._reason = ""

    @property
    def id(self) -> str:
        """Id of the command."""
        return self.message.id

    @property
    def command(self) -> str:
        """Name of the command."""
        return self.message.command

    @property
    def argument(self) -> dict[str, Any]:
        """The argument, checked against its schema. It is empty if the command takes none."""
        return self.message.argument or {}

    @property
    def again(self) -> bool:
        """Whether the command was begun before, and a crash interrupted it."""
        return self.life.again

    @property
    def cancelled(self) -> str:
        """The reason why the command must end now; an empty text while it may go on."""
        return self._reason

    def reaches(self, values: Mapping[str, str]) -> bool:
        """Return whether values have the final state of the command."""
        attribute, labels = self.goal
        return values.get(attribute) in labels

    def cancel(self, reason: str) -> None:
        """Ask the handler to end: its next `wait` raises `Cancelled`."""
        self._reason = self._reason or reason
        self._cancelled.set()

    def claim(self) -> None:
        """Make sure that no other controller can have begun the command, before a state is told of it.

        Raises
        ------
        Cancelled
            Another one can: its partition has moved while this process stood still.
        """
        if not (self.moved or self.is_ours(self)):
            self.moved = True
            self.cancel("its partition is another controller's")
        if self.moved:
            raise Cancelled(self._reason)

    def take_back(self, reason: str) -> None:
        """End an order that its giver has ended."""
        self.taken_back = True
        self.cancel(f"taken back: {reason}")

    def extend(self, deadline_us: int) -> None:
        """Move the deadline [Unix us], up to the ceiling; it never comes nearer."""
        self.deadline = min(max(self.deadline, deadline_us), max(self.message.ceiling, self.message.deadline))

    def order(self, device: str, command: str, argument: Mapping[str, Any] | None = None) -> "Order":
        """Give an order to another controller; return when all in-sync replicas have it.

        A handler that is executed again after a crash gives its orders again. They are the same orders, and no
        controller executes one twice. The SDK recognises them by device, command and their count.

        Parameters
        ----------
        device
            A device of the classes or executors that the controller names as `orders`.
        command
            Name of the command.
        argument
            Checked against the schemas of the command. The key `interface` may be left out.

        Returns
        -------
        Order
            For `collect`. An order that is not collected continues after the command has completed.

        Raises
        ------
        ValueError
            The device or command does not exist, or the argument is wrong. Nothing was sent.
        Cancelled
            The command was aborted.
        """
        return self.orders((device, command, argument))[0]

    def orders(self, *wanted: tuple[str, str, Mapping[str, Any] | None]) -> "list[Order]":
        """Give several orders together, each as device, command and argument; see `order`."""
        return self._giving.give(self, wanted)

    def collect(self, orders: "Iterable[Order]") -> "list[OrderOutcome]":
        """Wait for the outcomes of orders, and return them in the same order.

        The deadline of an order is that of the ICD, but at most nine tenths of the time that the command had
        left. An order without an outcome at its deadline is TIMED_OUT.

        Raises
        ------
        Cancelled
            The command was aborted. Its orders end as ABORTED.
        """
        return self._giving.collect(self, list(orders))

    def follow(self, orders: "Iterable[Order]") -> "Sequence[OrderOutcome]":
        """Wait for the outcomes of orders, and require that all are COMPLETED.

        Raises
        ------
        NotFollowed
            Some are not. The text names them with their reasons; the command fails with it.
        Cancelled
            The command was aborted. Its orders end as ABORTED.
        """
        from facade.controller.orders import require

        outcomes = self.collect(orders)
        require(outcomes)
        return outcomes

    def ordered(self, name: str) -> list[str]:
        """Return the devices of a class or executor to which this controller may give orders."""
        return self._giving.devices(name)

    def reported_of(self, device: str, attribute: str, default: Any = None) -> Any:
        """Return the value that was reported last of an attribute of a device that gets orders; see `reported`."""
        reported = self._outbox.states.get(device, attribute)
        return default if reported is None else reported.value

    def abort_orders(self, why: str) -> None:
        """End all orders that have no outcome yet."""
        if self.given:
            self._giving.abort(self, why)

    @property
    def _giving(self) -> "Orders":
        if self._orders is None:
            raise ValueError("expected a call that an execution has made, got one that gives no orders")
        return self._orders

    def progress(self, percent: float, remaining: float | None = None, text: str = "") -> None:
        """Report the progress of the command.

        Parameters
        ----------
        percent
            The completed part, 0 to 100.
        remaining
            Time still needed [s]. Clients wait this much longer for the outcome.
        text
            For people, such as the name of the present step.

        Raises
        ------
        Cancelled
            The command was aborted.
        """
        self.check()
        self._outbox.progress(self, percent, remaining, text)

    def wait(self, seconds: float) -> None:
        """Wait some seconds. An Abort ends the wait at once, so handlers should wait here and nowhere else.

        Parameters
        ----------
        seconds
            Time to wait [s].

        Raises
        ------
        Cancelled
            The command was aborted.
        """
        self.check()
        self._outbox.wait(self._cancelled, seconds)
        self.check()

    def check(self) -> None:
        """Raise `Cancelled` if the command was aborted. Call it between long calculations.

        Raises
        ------
        Cancelled
            The command was aborted.
        """
        if self._reason:
            raise Cancelled(self._reason)


Handler = Callable[[Call], Any]
OnInterrupted = Callable[[Device, str], None]


class Controller:
    """The handlers of one controller.

    Parameters
    ----------
    component
        Name in heartbeats and acknowledgements. It stays the same after a restart, and is unique.
    *classes
        Device classes and executors of the ICD whose commands it executes.
    group
        Controllers of one group share the devices, and take over from each other. By default the controller
        is the only one of its group.
    orders
        Device classes and executors of the ICD to which its handlers give orders.
    """

    def __init__(self, component: str, *classes: str, group: str | None = None, orders: Sequence[str] = ()) -> None:
        self.component = component
        self.classes = classes
        self.orders = tuple(orders)
        self.group = group or component
        self.handlers: dict[str, Handler] = {}
        self.on_interrupted: OnInterrupted = lambda device, command: None

    def command(self, *names: str) -> Callable[[Handler], Handler]:
        """Register a handler for commands of these names.

        The value that the handler returns is the result of the command: anything that JSON can hold, or None.
        If the handler raises `Rejected`, the command is REJECTED. Any other exception makes it FAILED, with the
        text of the exception. Commands of one device run one after the other, those of different devices at
        the same time.

        Raises
        ------
        ConfigError
            A command has two handlers.
        """

        def register(handler: Handler) -> Handler:
            for name in names:
                if name in self.handlers:
                    raise ConfigError(f"controller {self.component}: {name} has two handlers")
                self.handlers[name] = handler
            return handler

        return register

    def interrupted(self, handler: OnInterrupted) -> OnInterrupted:
        """Register a function for commands that a crash interrupted and that are not repeated.

        Such a command has failed: it must not be repeated, or it is too late for that. The function gets the
        device and the name of the command. It usually reports a fault.
        """
        self.on_interrupted = handler
        return handler

    def commands(self, icd: Icd) -> dict[str, dict[str, Command]]:
        """Return the ICD's commands by device class and name.

        Raises
        ------
        ConfigError
            The ICD lacks a class, or a command that a handler is for.
        """
        all_ = icd.commanded
        if unknown := {*self.classes, *self.orders} - set(all_):
            raise ConfigError(
                f"controller {self.component}: expected device classes or executors from {', '.join(all_)},"
                f" got {', '.join(sorted(unknown))}"
            )
        found = {name: {command.name: command for command in all_[name].commands} for name in self.classes}
        known = {name for commands in found.values() for name in commands}
        if strange := set(self.handlers) - known:
            raise ConfigError(
                f"controller {self.component}: {', '.join(sorted(strange))}: expected commands of"
                f" {', '.join(self.classes)}: {', '.join(sorted(known))}"
            )
        return found
