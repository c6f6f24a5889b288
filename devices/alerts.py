"""The device of the alerts: its events come from the event loop, its commands go to the operator API."""

from collections.abc import Callable
from functools import partialmethod
from typing import Any

import tango

from devices.queries import QueriedDevice, as_tango, refusal
from facade.flows.alerts.messages import ActionKind
from facade.flows.alerts.operator_api import OperatorApi

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


def _acting(name: str, kind: ActionKind) -> Callable[[OperatorApi, str], str]:
    return lambda operator_api, text: operator_api.act(name, kind, text)


_QUERIES: dict[str, Callable[..., str]] = {
    "GetAlertsSince": OperatorApi.since,
    "GetAlertHistory": OperatorApi.history,
    "GetAlarms": OperatorApi.alarms,
    "RefreshAlerts": OperatorApi.refresh,
    **{name: _acting(name, kind) for name, kind in ACTIONS.items()},
}
"""What the operator API does for each Tango command."""


class SdpAlerts(QueriedDevice):
    """All alerts, and the actions of operators."""

    def ask(self, name: str, *argument: Any) -> str:
        """Ask the operator API.

        Raises
        ------
        tango.DevFailed
            Says what was expected and found, and whether anything may have been done.
        """
        where = f"SdpAlerts.{name}"
        operator_api = None if self.service is None else self.service.find(OperatorApi)
        if operator_api is None:
            raise refusal("the device server is still starting; try again", where)
        # Those who read the device do not wait with an operator for the bus.
        with tango.AutoTangoAllowThreads(self), as_tango(where):
            return _QUERIES[name](operator_api, *argument)


for _name in _QUERIES:
    setattr(SdpAlerts, f"query_{_name}", partialmethod(SdpAlerts.ask, _name))
