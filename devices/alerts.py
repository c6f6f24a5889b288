"""The device of the alerts: its events come from the event loop, its commands go to the operator API."""

from collections.abc import Callable
from functools import partialmethod
from typing import Any

import tango

from devices.kernel.queries import QueriedDevice, as_tango, client_of, refusal
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
"""Tango commands of operators, with their actions on the log."""


_QUERIES: dict[str, Callable[..., str]] = {
    "GetAlertsSince": OperatorApi.since,
    "GetAlertHistory": OperatorApi.history,
    "GetAlarms": OperatorApi.alarms,
    "RefreshAlerts": OperatorApi.refresh,
}
"""Answer of the operator API to each Tango command without an effect, and to RefreshAlerts."""


class SdpAlerts(QueriedDevice):
    """All alerts, and the actions of operators."""

    def ask(self, name: str, *argument: Any) -> str:
        """Call the operator API.

        Raises
        ------
        tango.DevFailed
            The action was refused, or its outcome is unknown.
        """
        where = f"SdpAlerts.{name}"
        operator_api = None if self.service is None else self.service.find(OperatorApi)
        if operator_api is None:
            raise refusal("the device server is still starting; try again", where)
        given = (*argument, client_of(self)) if name in ACTIONS else argument
        # Readers of the device do not wait for the bus.
        with tango.AutoTangoAllowThreads(self), as_tango(where):
            if name in ACTIONS:
                return operator_api.act(name, ACTIONS[name], *given)
            return _QUERIES[name](operator_api, *given)


for _name in (*_QUERIES, *ACTIONS):
    setattr(SdpAlerts, f"query_{_name}", partialmethod(SdpAlerts.ask, _name))
