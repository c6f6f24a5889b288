"""What the devices showed at a second of the past: values, alarms, commands, and the newest entries of the alert log.

The devices' own code makes it from the records up to that second: the ledger recalls the states of the alarms, as after
a restart of the device server, and `Past` folds commands and acknowledgements. Records count by Kafka's time. Alarms
whose state was written before `ALARMS_BACK`, and commands given before `COMMANDS_BACK`, are left out.
"""

from collections.abc import Callable, Iterator, Mapping
from heapq import nlargest
from operator import attrgetter
from typing import Any, Final

import msgspec

from facade.archive.files import ArchiveError
from facade.archive.history import HistoryArchive, Point
from facade.archive.newest import NewestRecords, ReadCache, undecoded
from facade.archive.reading import read_batches
from facade.archive.stores import Store
from facade.flows.alerts import messages
from facade.flows.alerts.flow import AlertsFlow
from facade.flows.alerts.given import GivenActions
from facade.flows.commands.messages import ACKS, COMMANDS, HELD_COMMANDS
from facade.flows.commands.past import Past, given_at
from facade.flows.commands.view import as_dict
from facade.kernel.bus.dead_letters import TOPIC as DEAD
from facade.kernel.bus.dead_letters import original
from facade.kernel.bus.port import Record
from facade.kernel.clock import (
    DAY,
    FOREVER,
    HOUR,
    MINUTE,
    NEVER,
    SECOND,
    Clock,
    Duration,
    Time,
    as_seconds,
    as_time,
    to_ms,
)
from facade.kernel.icd.model import Icd
from facade.sdp import alarm_states as states

ALARMS_BACK: Final = 30 * DAY
COMMANDS_BACK: Final = 12 * HOUR
_ALERTS_BACK = HOUR
_MOST_COMMANDS = 200
"""Commands of a device, as on the page."""
_MOST_ALERTS = 15
_MOST_LETTERS = 1000
"""Files of dead letters whose acknowledgements are kept."""
_MOST_FOLDED = 50_000
"""Commands that are kept, of all moments together, each of about 1 kB: the page's container has 512 MB for all."""
_OF_COMMANDS: Final = (HELD_COMMANDS, COMMANDS, ACKS)
"""In the order in which they are folded."""
ALERTS_CLASS: Final = "SdpAlerts"

_Records = tuple[Time, tuple[Time, ...], tuple[str, ...], tuple[str, ...]]
"""Records about commands: time of the first one, newest times of the topics, their files, and those of dead letters."""


class MomentArchive:
    """An archive that is asked about single moments, from any thread."""

    def __init__(self, store: Store, history: HistoryArchive, icd: Icd, rack_size: int, clock: Clock) -> None:
        self._store, self._history, self._icd, self._rack_size, self._clock = store, history, icd, rack_size, clock
        self.topics = {
            topic: NewestRecords(store, topic, undecoded)
            for topic in (messages.STATES, messages.ALERTS, messages.ACTIONS, HELD_COMMANDS, COMMANDS, ACKS, DEAD)
        }
        self._folded = ReadCache(self._fold, _MOST_FOLDED, lambda found: len(found) + 1)
        self._aside_in = ReadCache(self._read_aside, _MOST_LETTERS)

    def extent(self) -> tuple[Time, Time]:
        """Return the times of the first and the last record of the history."""
        return self._history.extent()

    def at(self, time: Time) -> dict[str, Any]:
        """Return the state of the deployment at the end of a second [Unix us].

        Returns
        -------
        dict
            `values` (by device and attribute: value, quality, time of the data [Unix s], empty text), `alarms` (as of
            GetAlarms), `alerts` (newest entries of the log), `commands` (by device, as of GetCommandHistory), each
            None if the archive cannot tell, and `unknown`: by part the reason, in words.

        Raises
        ------
        ArchiveError
            The archive has no history of that time, or cannot be read.
        """
        return next(self.steps(time, SECOND, 1))

    def steps(self, time: Time, step: Duration, count: int) -> Iterator[dict[str, Any]]:
        """Yield what `at` returns for seconds that follow each other, `step` apart, up to the end of the archive.

        The first one has all `values`, and each other one those that differ from the one before; None: no longer known.
        """
        second, known = self.values(time)
        changed: Mapping[str, Point | None] = known
        for number in range(count):
            if number:
                try:
                    changed = self._history.advance(known, _end(second), _end(second + step))
                except ArchiveError:
                    return  # a question about that second gets the reason
                second += step
            yield self._shown(second, changed)

    def _shown(self, second: Time, points: Mapping[str, Point | None]) -> dict[str, Any]:
        until = _end(second)
        values: dict[str, dict[str, list[Any] | None]] = {}
        for name, point in points.items():
            device, _, attribute = name.rpartition("/")
            told = None if (one := point and point[1]) is None else [one.value, one.quality, as_seconds(one.time), ""]
            values.setdefault(device, {})[attribute] = told
        unknown: dict[str, str] = {}

        def part(name: str, make: Callable[[Time], Any], *topics: str) -> Any:
            if lacking := self.lacking(*topics):
                unknown[name] = f"the archive has no records of the topic {lacking}"
                return None
            return make(until)

        return {
            "time": as_seconds(second),
            "values": values,
            "alarms": part("alarms", self._alarms, messages.STATES),
            "alerts": part("alerts", self._alerts, messages.ALERTS),
            "commands": part("commands", lambda time: self.commands(time - COMMANDS_BACK, time), COMMANDS, ACKS),
            "unknown": unknown,
        }

    def values(self, time: Time) -> tuple[Time, dict[str, Point]]:
        """Return a time's second [Unix us], and the values of all attributes at its end, by name; errors as of `at`."""
        second = as_time(float(as_seconds(time) // 1))
        return second, self._history.at(_end(second))

    def _alarms(self, until: Time) -> list[dict[str, Any]]:
        device = str(self._icd.classes[ALERTS_CLASS].device)
        flow = AlertsFlow(self._icd, device, self._rack_size, GivenActions(tuple, self._clock))
        newest = self.topics[messages.STATES].at(max(until - ALARMS_BACK, NEVER), until)
        for key, one in sorted(newest.items(), key=lambda pair: pair[1][:2]):
            (value,) = one.content
            if value is not None:  # with only the newest records, none has to be forgotten
                flow.recall(Record(topic=messages.STATES, key=key, value=value, timestamp_us=one.at))
        flow.ledger.fire(until)
        return [flow.describe(alarm) for state, alarm in flow.ledger.all_shown() if state != states.NORM]

    def _alerts(self, until: Time) -> list[dict[str, Any]]:
        begin = max(until - _ALERTS_BACK, NEVER)
        records = self.topics[messages.ALERTS].records(begin, until)
        newest = nlargest(_MOST_ALERTS, records, key=attrgetter("timestamp_us", "offset"))
        proofs = self.topics[messages.ACTIONS]
        given = GivenActions(lambda: proofs.records(max(begin - 10 * MINUTE, NEVER), until + MINUTE), self._clock)
        entries: list[dict[str, Any]] = []
        for record in reversed(newest):
            message = AlertsFlow.decode(record)
            if isinstance(message, messages.Alert):
                entries.append({"time": as_seconds(record.timestamp_us), "alert": msgspec.to_builtins(message)})
            elif isinstance(message, messages.Action) and given.prove(record):
                entries.append({"time": as_seconds(record.timestamp_us), "action": msgspec.to_builtins(message)})
        return entries

    def lacking(self, *topics: str) -> str:
        """Return the first of some topics that the archive has not; empty: it has them all."""
        return next((topic for topic in topics if not self.topics[topic].is_kept), "")

    def commands(self, begin: Time, until: Time, most: int = _MOST_COMMANDS) -> dict[str, list[dict[str, Any]]]:
        """Return the newest commands given from `begin` to `until` by device, as of GetCommandHistory."""
        begin = max(begin, NEVER)
        since = begin - Duration(int(begin) % int(MINUTE))
        topics = [self.topics[topic] for topic in _OF_COMMANDS]
        # Between two records nothing changes: a page that plays a night asks for each second.
        ends = tuple(topic.newest(since, until) for topic in topics)
        files = tuple(name for topic in topics for name in topic.files(since, until))
        letters = tuple(self.topics[DEAD].files(since, until + MINUTE))
        found: dict[str, list[dict[str, Any]]] = {}
        for given, told in self._folded((since, ends, files, letters)):
            some = found.setdefault(told["device"], [])
            if given >= begin and len(some) < most:
                some.append(told)
        return {device: some for device, some in found.items() if some}

    def _fold(self, of: _Records) -> list[tuple[Time, dict[str, Any]]]:
        """Return the commands of some records, the newest first, each with the time at which it was given."""
        since, ends, _, letters = of
        # Partition and offset of the acknowledgements that device servers set aside, and did not count.
        aside, past = set().union(*self._aside_in.each(letters)), Past(since)
        for topic, add, end in zip(_OF_COMMANDS, (past.add_held, past.add_command, past.add_ack), ends, strict=True):
            for record in self.topics[topic].records(since, end):
                if topic != ACKS or (record.partition, record.offset) not in aside:
                    add(record)
        return [(given_at(one), as_dict(one)) for one in reversed(past.commands()) if one.id]

    def _read_aside(self, name: str) -> frozenset[tuple[int, int]]:
        # Without the values, which are the bulk of the file.
        batches = read_batches(self._store, name, "timestamp", 0, to_ms(FOREVER), ("timestamp", "offset", "headers"))
        rows = (row for _, batch in batches for row in batch.column("headers").to_pylist())
        headers = (tuple((one["name"], one["value"]) for one in row or ()) for row in rows)
        letters = (original(Record(topic=DEAD, key=None, value=None, headers=some)) for some in headers)
        return frozenset((one.partition, one.offset) for one in letters if one.topic == ACKS)


def _end(second: Time) -> Time:
    return second + SECOND - Duration(1)
