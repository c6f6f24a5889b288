"""The handles of the SDK: a device, and the command that a handler executes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from facade.flows.commands.messages import CommandMessage
from facade.kernel.bus.port import Headers, Record
from facade.kernel.clock import Time
from facade.sdk.controller.execution_state import Cancelled, Execution, Order, OrderOutcome, Reports
from facade.sdk.controller.orders import Orders, require
from facade.sdk.controller.outbox import Outbox
from facade.sdk.controller.ownership import Ownership
from facade.sdp.device_state import as_text


class Device:
    """A device of a controller: it gives the values that were reported last, and reports new ones."""

    def __init__(self, reports: Reports, outbox: Outbox) -> None:
        self._reports = reports
        self._outbox = outbox

    @property
    def device(self) -> str:
        """Name of the Tango device."""
        return self._reports.device

    @property
    def headers(self) -> Headers:
        """Headers of the command that its records pass on, such as the trace."""
        return self._reports.headers

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
        texts = {name: as_text(value) for name, value in values.items()}
        self._outbox.report(self._reports, texts)

    def publish(self, *records: Record) -> None:
        """Write records of other topics, such as the states of processing blocks, with the trace of the command.

        The call returns when all in-sync replicas have the records.

        Raises
        ------
        ValueError
            A record is larger than its topic takes.
        Cancelled
            The controller ends while the bus takes no records.
        """
        self._outbox.write(
            self._reports, [replace(record, headers=(*record.headers, *self.headers)) for record in records]
        )
        self.confirm()

    def confirm(self) -> None:
        """Wait until all in-sync replicas have all reports, the final state included.

        Raises
        ------
        Cancelled
            The controller ends while the bus takes no records.
        """
        if not self._outbox.confirm(self._reports):
            raise Cancelled("the controller ends, and the bus takes nothing")


class Call(Device):
    """A command that is being executed. Its handler gets it as the only argument."""

    def __init__(self, execution: Execution, outbox: Outbox, orders: Orders, ownership: Ownership) -> None:
        super().__init__(execution, outbox)
        self._execution = execution
        self._orders = orders
        self._ownership = ownership

    @property
    def message(self) -> CommandMessage:
        """The command as it is on the bus, with its times."""
        return self._execution.message

    @property
    def deadline(self) -> Time:
        """When clients stop waiting for the outcome [Unix us]. Progress moves it."""
        return self._execution.deadline

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
        return self._execution.again

    @property
    def cancelled(self) -> str:
        """The reason why the command must end now; an empty text while it may go on."""
        return self._execution.cancel_reason

    def report(self, **values: Any) -> None:
        """Report attributes of the device; see `Device.report`."""
        self._ownership.require(self._execution)
        super().report(**values)

    def order(self, device: str, command: str, argument: Mapping[str, Any] | None = None) -> Order:
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

    def orders(self, *wanted: tuple[str, str, Mapping[str, Any] | None]) -> list[Order]:
        """Give several orders together, each as device, command and argument; see `order`."""
        return self._orders.give(self._execution, wanted)

    def collect(self, orders: Iterable[Order]) -> list[OrderOutcome]:
        """Wait for the outcomes of orders, and return them in the same order.

        The ICD gives the deadline of an order, but it is at most nine tenths of the time that the command had
        left. An order without an outcome at its deadline is TIMED_OUT.

        Raises
        ------
        Cancelled
            The command was aborted. Its orders end as ABORTED.
        """
        return self._orders.collect(self._execution, list(orders))

    def follow(self, orders: Iterable[Order]) -> Sequence[OrderOutcome]:
        """Wait for the outcomes of orders, and require that all are COMPLETED.

        Raises
        ------
        NotFollowed
            Some are not. The text names them with their reasons; the command fails with it.
        Cancelled
            The command was aborted. Its orders end as ABORTED.
        """
        outcomes = self.collect(orders)
        require(outcomes)
        return outcomes

    def ordered(self, name: str) -> list[str]:
        """Return the devices of a class or executor to which this controller may give orders."""
        return self._orders.devices(name)

    def reported_of(self, device: str, attribute: str, default: Any = None) -> Any:
        """Return the value that was reported last of an attribute of a device that gets orders; see `reported`."""
        reported = self._outbox.states.get(device, attribute)
        return default if reported is None else reported.value

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
        ValueError
            A number is NaN.
        Cancelled
            The command was aborted.
        """
        self.check()
        self._outbox.progress(self._execution, percent, remaining, text)

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
        self._outbox.wait(self._execution, seconds)

    def check(self) -> None:
        """Raise `Cancelled` if the command was aborted. Call it between long calculations.

        Raises
        ------
        Cancelled
            The command was aborted.
        """
        self._execution.check()
