"""One device as its controller sees it: what was reported of it last, and a way to report."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from facade.bus.port import Headers, Record

if TYPE_CHECKING:
    from facade.controller.outbox import Outbox, Posted


class Cancelled(BaseException):
    """The SDK raises it in a handler whose command was aborted, or whose process is about to end.

    It is not an `Exception`, so that a handler's own ``except Exception`` does not catch it.
    """


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
        ValueError
            A record is larger than its topic takes.
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
