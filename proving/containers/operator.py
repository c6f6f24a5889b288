"""An operator outside the containers: an alert is raised, acknowledged, and still acknowledged after kills."""

import json
from collections.abc import Mapping
from typing import Any, Final

import tango

from facade.bus.kafka.connection import Connection
from facade.bus.kafka.producer import KafkaWriter
from facade.bus.port import BusHealth
from facade.clock import SystemClock
from facade.config import Settings
from facade.flows.alerts.source import AlertSource
from proving.progress import Progress

_ALERTS: Final = "mid-sdp/alerts/0"
_BUS: Final = "mid-sdp/bus/0"
_CONDITION, _SOURCE = "receiveOverrun", "receive/0001"
_WITHIN_S: Final = 300.0


class Operator:
    """Looks at alarms and accounts of a project through Tango alone.

    Parameters
    ----------
    outside
        The environment that points at the project.
    """

    def __init__(self, outside: Mapping[str, str], progress: Progress) -> None:
        self._tango_host, self._progress = outside["TANGO_HOST"], progress
        self._settings = Settings(bootstrap=outside["KAFKA_BOOTSTRAP"], prefix=outside["SDP_TOPIC_PREFIX"])

    def acknowledge_an_alert(self) -> None:
        """Raise an alert on the bus, and acknowledge it when SdpAlerts has its alarm.

        Raises
        ------
        InfraError
            A state did not come.
        """
        clock = SystemClock()
        writer = KafkaWriter(Connection(self._settings, clock=clock), health=BusHealth(), client="containers")
        AlertSource(_SOURCE, writer, clock).raise_alert(_CONDITION, "ALARM", "expected no drops, got 312 heaps/s")
        writer.close(_WITHIN_S)
        self.await_state("UNACK")
        about = {"condition": _CONDITION, "source": _SOURCE, "occurrence": self._alarm()["occurrence"]}
        argument = json.dumps({**about, "operator": "make containers", "comment": "seen"})
        self._proxy(_ALERTS).command_inout("Acknowledge", argument)
        self.await_state("ACKED")
        self._progress.step("an alert was raised and acknowledged from outside")

    def await_state(self, state: str) -> None:
        """Wait until the alarm has a state.

        Raises
        ------
        InfraError
            It did not come.
        """
        what = f"the alarm {_CONDITION} of {_SOURCE} in the state {state}"
        self._progress.demand(lambda: self._state() == state, _WITHIN_S, what)

    def account(self) -> dict[str, int]:
        """Return what SdpBus says of the balance of each stream, and its dead letters.

        Raises
        ------
        InfraError
            Something is not zero after a while.
        """
        found: dict[str, int] = {}

        def is_balanced() -> bool:
            try:
                proxy = self._proxy(_BUS)
                names = [one for one in proxy.get_attribute_list() if one.endswith(("Balance", "DeadLettered"))]
                found.update(
                    {one.name: int(one.value) for one in proxy.read_attributes(names) if one.value is not None}
                )
            except tango.DevFailed:
                return False
            return bool(found) and not any(found.values())

        self._progress.demand(is_balanced, _WITHIN_S, "accounts without a difference and without dead letters")
        return found

    def _state(self) -> str:
        try:
            return str(self._alarm().get("state", "NORM"))
        except tango.DevFailed:
            return "no answer"

    def _alarm(self) -> dict[str, Any]:
        alarms = json.loads(self._proxy(_ALERTS).command_inout("GetAlarms"))
        return next((one for one in alarms if (one["condition"], one["source"]) == (_CONDITION, _SOURCE)), {})

    def _proxy(self, device: str) -> Any:
        return tango.DeviceProxy(f"tango://{self._tango_host}/{device}")
