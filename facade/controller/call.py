"""One command while a handler executes it: its argument, how far it is, and the orders that it gives."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from facade.bus.port import Headers
from facade.controller.device import Cancelled, Device
from facade.controller.life import Life
from facade.flows.commands.messages import CommandMessage

if TYPE_CHECKING:
    from facade.controller.inbox import Place
    from facade.controller.orders import Order, OrderOutcome, Orders
    from facade.controller.outbox import Outbox


class Call(Device):
    """A command that is being executed. Its handler gets it as the only argument."""

    def __init__(
        self,
        message: CommandMessage,
        headers: Headers,
        place: "Place",
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
        """Confirm with the broker that this controller still owns the command; called before a state is reported.

        Raises
        ------
        Cancelled
            Another controller owns it: its partition has moved while this process was suspended.
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
