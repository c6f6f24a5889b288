"""The device of the alerts: its events come from the event loop, its commands go to the operator API."""

from collections.abc import Callable
from typing import Any

from devices.base import FacadeDevice
from devices.queries import refusal, tango_query
from facade.errors import CommandRefused, NotSent, OutcomeUnknown
from facade.flows.alerts.messages import ActionKind
from facade.flows.alerts.operator_api import OperatorApi
from facade.icd.model import DeviceClass

ACTIONS: dict[str, ActionKind] = {
    "Acknowledge": "ACKNOWLEDGE",
    "Comment": "COMMENT",
    "Shelve": "SHELVE",
    "Unshelve": "UNSHELVE",
    "Reset": "RESET",
    "RemoveFromService": "REMOVE_FROM_SERVICE",
    "ReturnToService": "RETURN_TO_SERVICE",
}
"""Tango commands by which operators act, and what they put on the log."""


class SdpAlerts(FacadeDevice):
    """All alerts, and the actions of operators."""

    @classmethod
    def tango_commands(cls, entry: DeviceClass) -> dict[str, Any]:
        """Make the Tango commands of the class, by name."""
        return {one.name: tango_query(one) for one in entry.queries}

    def query_GetAlertsSince(self, sequence: int) -> str:  # noqa: N802 - Tango's name
        """Return what followed a sequence number."""
        return self.ask("GetAlertsSince", lambda operator_api: operator_api.since(sequence))

    def query_GetAlertHistory(self, text: str) -> str:  # noqa: N802 - Tango's name
        """Return the newest alerts and actions about a condition."""
        return self.ask("GetAlertHistory", lambda operator_api: operator_api.history(text))

    def query_GetAlarms(self) -> str:  # noqa: N802 - Tango's name
        """Return all alarms that are not at rest."""
        return self.ask("GetAlarms", lambda operator_api: operator_api.alarms())

    def query_RefreshAlerts(self) -> str:  # noqa: N802 - Tango's name
        """Ask for an event for each alarm that is not at rest."""
        return self.ask("RefreshAlerts", lambda operator_api: operator_api.refresh())

    def ask(self, name: str, what: Callable[[OperatorApi], str]) -> str:
        """Ask the operator API; a refusal, and a bus that does not answer, become Tango's exception.

        Raises
        ------
        tango.DevFailed
            Says what was expected and found, and whether anything may have been done.
        """
        where = f"SdpAlerts.{name}"
        operator_api = None if self.service is None else self.service.find(OperatorApi)
        if operator_api is None:
            raise refusal("the device server is still starting; try again", where)
        try:
            return what(operator_api)
        except CommandRefused as error:
            raise refusal(str(error), error.origin, error.reason) from error
        except NotSent as error:
            raise refusal(str(error), where) from error
        except OutcomeUnknown as error:
            raise refusal(str(error), where, "API_CommandTimedOut") from error


def _action(name: str, kind: ActionKind) -> Callable[[SdpAlerts, str], str]:
    def call(self: SdpAlerts, text: str) -> str:
        return self.ask(name, lambda operator_api: operator_api.act(name, kind, text))

    call.__name__, call.__doc__ = f"query_{name}", f"Put {kind} on the log."
    return call


for _name, _kind in ACTIONS.items():
    setattr(SdpAlerts, f"query_{_name}", _action(_name, _kind))
