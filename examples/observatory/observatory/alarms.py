"""The alarms of the observatory: raised and cleared on a compacted topic, and shown by ObsAlarms."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from facade.kernel.bus.port import Record
from facade.kernel.clock import Time
from facade.kernel.codec.decode import BatchDecoder
from facade.kernel.codec.json_schema import compile_message
from facade.kernel.outcome import USED, Outcome
from facade.kernel.reading import Value
from facade.kernel.runtime.composition import Server
from facade.kernel.runtime.projection import Projection
from facade.kernel.runtime.view import NewestView
from facade.kernel.runtime.worker import as_record

CLASS, TOPIC = "ObsAlarms", "alarms"
NORMAL, ACTIVE = "NORMAL", "ACTIVE"
_AGAIN = 1.0
"""Time after which a change that has not come back from the log is written again [s]."""


class Finding(NamedTuple):
    """Whether a condition is active; while that is not known, there is none."""

    condition: str
    is_active: bool
    text: str


class Alarms(Projection[Any]):
    """The state of each alarm on the log, and a periodic task that writes what differs from the findings.

    The log decides: a change counts when it has come back, and until then it is written again. So no alarm is lost with
    a process, and a device server that restarts clears what has gone meanwhile.
    """

    topic = TOPIC

    def __init__(self, server: Server) -> None:
        self._server, self._message = server, compile_message("alarm", server.icd.messages["alarm"])
        self._decoder = BatchDecoder(self._message)
        self.newest: dict[str, Any] = {}
        """By condition."""
        self.finders: list[Callable[[Time], Iterable[Finding]]] = []
        """Return what is found now, for the alarms that this device server raises."""
        self._told: dict[str, float] = {}

    @classmethod
    def of(cls, server: Server) -> "Alarms":
        """Return the alarms of a device server, which reads them from now on."""
        if (found := server.find(cls)) is None:
            found = server.share(cls, lambda: cls(server))
            server.flows.append(found)
            server.periodic_tasks.append(found)
        return found

    def _read(self, record: Record) -> Any:
        return self._decoder.decode_one(record.value)

    def _take(self, alarm: Any, record: Record) -> Outcome:
        self.newest[alarm.condition] = alarm
        self._told.pop(alarm.condition, None)
        return USED

    def _remove(self, key: str) -> None:
        self.newest.pop(key, None)

    def perform(self) -> None:
        """Write each alarm whose state differs from the log; see `facade.kernel.runtime.event_loop.PeriodicTask`."""
        if not self._server.has_read(TOPIC):
            return
        now, clock = self._server.clock.now_us(), self._server.clock
        for condition, is_active, text in (one for find in self.finders for one in find(now)):
            known, wanted = self.newest.get(condition), ACTIVE if is_active else NORMAL
            if wanted == (known.state if known is not None else NORMAL):
                continue
            if clock.monotonic() - self._told.get(condition, float("-inf")) >= _AGAIN:
                self._told[condition] = clock.monotonic()
                message = self._message(schema="alarm/1", condition=condition, state=wanted, text=text, time=now)
                self._server.bus.writer().send(as_record(TOPIC, condition, message))

    def end(self) -> None:
        """Leave all alarms as they are: the next start finds out what has changed."""


class AlarmsView(NewestView):
    """Shows the alarms; see `facade.kernel.runtime.view.NewestView`."""

    what = "alarms"

    def __init__(self, device: str, server: Server, alarms: Alarms) -> None:
        super().__init__(device, server, TOPIC)
        self._alarms = alarms

    def _active(self) -> list[str]:
        return [f"{name}: {one.text}" for name, one in self._alarms.newest.items() if one.state == ACTIVE]

    def _look(self, now: Time) -> dict[str, Value]:
        newest = self._alarms.newest
        states = {name: newest[name].state if name in newest else NORMAL for name in self._server.icd.conditions}
        return {**states, "activeAlarms": tuple(self._active())}

    def _judge(self, now: Time) -> tuple[str, list[str]]:
        return ("ALARM", self._active()) if self._active() else ("ON", [])


def compose(server: Server) -> None:
    """Add ObsAlarms to a device server."""
    server.views.append(AlarmsView(server.only_device(CLASS), server, Alarms.of(server)))
