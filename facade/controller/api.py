"""What SDP teams write controllers with: handlers by command name, and the call that each one gets.

The rules that every controller must obey are in `facade.controller.execution`, and a handler need not
know them: it does what the command asks, reports the new state, and returns.

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
    """Raised by a handler that refuses, before it has changed anything; the text says why."""


class Cancelled(BaseException):
    """Raised in a handler whose command was aborted, or whose process is about to end.

    Not an `Exception`, so that a handler's own ``except Exception`` does not swallow it.
    """


class Place(NamedTuple):
    """Where the record of a command is."""

    partition: int
    offset: int
    assigned: int = 0
    """The number with which the partition was assigned; see `facade.bus.port.GroupMember`."""


class Device:
    """One device as its controller sees it: what was reported last, and a way to report."""

    def __init__(self, device: str, outbox: "Outbox", cause: str = "", headers: Headers = ()) -> None:
        self.device = device
        """Name of the Tango device."""
        self.cause = cause
        """Id of the command that brings about what is reported."""
        self.headers = headers
        """What the records about it carry on of the command's own headers."""
        self.posted: list[Posted] = []
        """What was written about it and is not known to be on the bus, in order."""
        self._outbox = outbox

    def reported(self, attribute: str, default: Any = None) -> Any:
        """Return what was last reported of an attribute: text, a number, or a tuple of texts."""
        reported = self._outbox.states.get(self.device, attribute)
        return default if reported is None else reported.value

    def report(self, **values: Any) -> None:
        """Report attributes of the device: ``call.report(obsState="READY", scanID=0)``.

        Texts and labels are given as they are; numbers, None, lists and dicts as well, and travel as JSON.
        It returns when all in-sync replicas have it, so that what a handler does next is never ahead of what is known
        of it. The state that the command leads to is an exception: it goes with the outcome, and is not waited for.

        Raises
        ------
        ValueError
            The ICD knows no such reported attribute, or the value is not one that it allows.
        """
        texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}
        self._outbox.report(self, texts)

    def publish(self, *records: Record) -> None:
        """Write records of other topics, such as the states of processing blocks, with the trace of the command.

        It returns when all in-sync replicas have them.

        Raises
        ------
        Cancelled
            The controller ends, and the bus takes nothing.
        """
        for record in records:
            self._outbox.post(self, replace(record, headers=(*record.headers, *self.headers)))
        self.confirm()

    def confirm(self) -> None:
        """Wait until all in-sync replicas have everything that was reported, for a handler that must know.

        Raises
        ------
        Cancelled
            The controller ends, and the bus takes nothing.
        """
        if not self._outbox.confirm(self):
            raise Cancelled("the controller ends, and the bus takes nothing")

    def claim(self) -> None:
        """Make sure that this controller may still tell states of it; see `Call.claim`."""

    def reaches(self, values: Mapping[str, str]) -> bool:
        """Return whether values have the state that a command leads to; what is no command leads to none."""
        return False


class Call(Device):
    """One command that is being executed."""

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
        """The command with its times."""
        self.place = place
        self.goal = goal
        """What the ICD says that it leads to: the attribute, and the labels that it may have then."""
        self.life = Life()
        self.deadline = message.deadline
        """When whoever waits for the outcome gives up [Unix us]; progress moves it."""
        self.places: dict[tuple[str, str], int] = {}
        """How many orders it has given, by device and command: an order's id follows from its place among them."""
        self.given: list[Order] = []
        self.taken_back = False
        """Whether the controller that has given it as an order has ended it."""
        self.is_ours: Callable[[Call], bool] = lambda call: True
        """Finds out whether no other controller can have begun the command since."""
        self.moved = False
        """Whether another one may have."""
        self.proven = 0.0
        """When its partition was this controller's last, as far as was asked [monotonic s]."""
        self._orders = orders
        self._cancelled = threading.Event()
        self._reason = ""

    @property
    def id(self) -> str:
        """Return the command's id."""
        return self.message.id

    @property
    def command(self) -> str:
        """Return the command's name."""
        return self.message.command

    @property
    def argument(self) -> dict[str, Any]:
        """Return the argument, checked against its schema; an empty one where the command takes none."""
        return self.message.argument or {}

    @property
    def again(self) -> bool:
        """Return whether it was begun before, and a crash came in between."""
        return self.life.again

    @property
    def cancelled(self) -> str:
        """Say why the command must end now; an empty text while it may go on."""
        return self._reason

    def reaches(self, values: Mapping[str, str]) -> bool:
        """Return whether values have the state that the command leads to."""
        attribute, labels = self.goal
        return values.get(attribute) in labels

    def cancel(self, reason: str) -> None:
        """Ask the handler to end; it hears of it in its next `wait`."""
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
        """Give an order to another controller; return once all in-sync replicas have it.

        A handler that is executed again after a crash gives the same order again, and it is the same order: the one
        with the same device, the same command, and as many such before it.

        Parameters
        ----------
        device
            A device of one of the classes or executors that the controller was made with as `orders`.
        argument
            Checked against the schemas of the command; `interface` may be left out.

        Returns
        -------
        The order, for `collect`. An order that nobody collects goes on after the command has completed.

        Raises
        ------
        ValueError
            There is no such device or command, or the argument is wrong; nothing was sent.
        Cancelled
            The command was aborted.
        """
        return self.orders((device, command, argument))[0]

    def orders(self, *wanted: tuple[str, str, Mapping[str, Any] | None]) -> "list[Order]":
        """Give several orders at once, each a device, a command and an argument; see `order`."""
        return self._giving.give(self, wanted)

    def collect(self, orders: "Iterable[Order]") -> "list[OrderOutcome]":
        """Wait for the outcomes of orders; one that has none by its deadline is TIMED_OUT.

        A deadline is that of the ICD, or nine tenths of what was left of this command's if that is less.

        Raises
        ------
        Cancelled
            The command was aborted; its orders are ABORTED then.
        """
        return self._giving.collect(self, list(orders))

    def follow(self, orders: "Iterable[Order]") -> "Sequence[OrderOutcome]":
        """Wait for the outcomes of orders, and require that all are COMPLETED.

        Raises
        ------
        NotFollowed
            Says which were not, why, and how many were; the command fails with that text.
        Cancelled
            See `collect`.
        """
        from facade.controller.orders import require

        outcomes = self.collect(orders)
        require(outcomes)
        return outcomes

    def ordered(self, name: str) -> list[str]:
        """Return the devices of a class, or the executors of a name, that this controller may give orders to."""
        return self._giving.devices(name)

    def reported_of(self, device: str, attribute: str, default: Any = None) -> Any:
        """Return what was last reported of an attribute of a device to which it may give orders; see `reported`."""
        reported = self._outbox.states.get(device, attribute)
        return default if reported is None else reported.value

    def abort_orders(self, why: str) -> None:
        """End the orders that have no outcome yet."""
        if self.given:
            self._giving.abort(self, why)

    @property
    def _giving(self) -> "Orders":
        if self._orders is None:
            raise ValueError("expected a call that an execution has made, got one that gives no orders")
        return self._orders

    def progress(self, percent: float, remaining: float | None = None, text: str = "") -> None:
        """Say how far it is.

        Parameters
        ----------
        remaining
            Time still needed [s]: whoever waits for the outcome waits for so much longer.

        Raises
        ------
        Cancelled
            The command was aborted.
        """
        self.check()
        self._outbox.progress(self, percent, remaining, text)

    def wait(self, seconds: float) -> None:
        """Wait [s]; handlers wait here and nowhere else, so that an Abort is heard at once.

        Raises
        ------
        Cancelled
            The command was aborted.
        """
        self.check()
        self._outbox.wait(self._cancelled, seconds)
        self.check()

    def check(self) -> None:
        """Raise `Cancelled` if the command was aborted: for handlers that work for long without waiting."""
        if self._reason:
            raise Cancelled(self._reason)


Handler = Callable[[Call], Any]
OnInterrupted = Callable[[Device, str], None]


class Controller:
    """The handlers of one controller.

    Parameters
    ----------
    component
        Its name in heartbeats and acknowledgements: the same after a restart, and nobody else's.
    classes
        Device classes and executors of the ICD whose commands it executes.
    group
        Controllers of one group share the devices, or take over from each other; None: it is alone.
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

        What it returns is the result (any JSON, or nothing); `Rejected` refuses, any other exception
        is a failure and its text the reason. Commands of one device come one after the other, those of
        different devices at the same time.
        """

        def register(handler: Handler) -> Handler:
            for name in names:
                if name in self.handlers:
                    raise ConfigError(f"controller {self.component}: {name} has two handlers")
                self.handlers[name] = handler
            return handler

        return register

    def interrupted(self, handler: OnInterrupted) -> OnInterrupted:
        """Register what to do about a device whose command was cut short by a crash and will not be repeated.

        Either it must not be, or it is too late for that. The handler gets the device and the command's name,
        and commonly reports a fault; the command has failed.
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
