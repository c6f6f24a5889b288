"""Alerts, tables and the mirror in the demo, each with its account."""

import hashlib
import json
from collections.abc import Callable, Collection
from pathlib import Path

import tango

from clients.alert_subscription import AlertSubscription
from clients.scene import ALERTS, CALIBRATION
from facade.bus.kafka.bus import KafkaBus
from facade.bus.kafka.producer import KafkaWriter
from facade.bus.port import BusHealth
from facade.config import MOST_SUBARRAYS
from facade.errors import FacadeError
from facade.flows.alerts import states
from facade.flows.alerts.follower import FollowedAlert
from facade.flows.alerts.source import AlertSource
from facade.flows.mirror.messages import CONNECTED, ENDED, MODEL, TelescopeAttribute, decode_attribute
from facade.flows.tables.fetch import fetch, find
from facade.flows.tables.messages import COMPLETE, decode_table
from facade.flows.tables.messages import TABLES as TABLES_TOPIC
from facade.messages import Table
from facade.reading import Quality
from facade.severities import Severity
from proving.demo.account import BalanceLine, disagreeing
from proving.demo.options import FLOWS_WITHIN
from proving.demo.plan import receptors_of
from proving.demo.report import AlertLine
from proving.demo.system import ASSEMBLER, Demo
from proving.mirror_account import MirrorFound, account_of, newest_wrong
from proving.roles import RoleProcess
from proving.telescope import pointing_of, read_journal, rule

INSTANCE = "alerts"
_OPERATOR = "demo operator"
_SHELVED_FOR = 600.0
_OVER_WITHIN = 100.0
"""Longest time from the end of the story until its alarms are over [s]: dead letters are told of for a minute."""
_TRIES = 10
"""So often the operator gives one command, if no broker confirms it in time."""
_TIMED_OUT, _NOT_ALLOWED = "API_CommandTimedOut", "API_CommandNotAllowed"
_LATCHED = frozenset({states.LTUNK, states.LTACK})
_SOURCES = ("receive/0001", "buffer/0", "cooling/2")
_EXPECTED = {
    ("receiveOverrun", "receive/0001"): "NORM",
    ("storageLow", "buffer/0"): "LTUNK",
    ("coolantWarm", "cooling/2"): "SHLVD",
    ("pipelineFailed", "buffer/0"): "UNACK",
}
"""What the alarms come to in the end."""


class AlarmStory:
    """Raises, acknowledges, shelves and clears; a client with a subscription of its own listens all the time.

    Everything is compared at the end: what was sent and done beside what the client was given.
    """

    def __init__(self, demo: Demo) -> None:
        self._demo, self._progress = demo, demo.progress
        self._name = demo.tango_side.devices[ALERTS][0]
        writer = KafkaWriter(demo.deployment.connection, health=BusHealth(), client="demo-source")
        self._sources = {name: AlertSource(name, writer, demo.clock) for name in _SOURCES}
        self._actions: set[tuple[str, str, str]] = set()
        """Action, condition and source. One that was tried again may have been done at the first try, whose id nobody
        was told: the second is then a dead letter."""
        self._sent: dict[str, int] = dict.fromkeys(_SOURCES, 0)
        self.entries: list[FollowedAlert] = []
        self._lost: list[str] = []
        self._client = AlertSubscription(
            f"tango://{demo.deployment.tango_host}/{self._name}",
            self.entries.append,
            start=0,
            on_lost=self._lost.append,
        )

    def close(self) -> None:
        """End the client."""
        self._client.close()

    def play(self) -> None:
        """Play the whole scenario."""
        self._raise("receiveOverrun", "receive/0001", "ALARM", "expected no drops, got 312 heaps/s")
        self._raise("storageLow", "buffer/0", "WARNING", "expected 40 TB free, got 31 TB")
        self._raise("coolantWarm", "cooling/2", "WARNING", "expected at most 18 C, got 19.5 C")
        self._progress.step("alerts: three conditions raised, one of them unknown to the ICD")
        self._until("receiveOverrun", "receive/0001", "UNACK")
        self._act("Acknowledge", "receiveOverrun", "receive/0001", comment="asked the receive team")
        self._act("Shelve", "coolantWarm", "cooling/2", duration=_SHELVED_FOR, comment="pump is being changed")
        self._until("receiveOverrun", "receive/0001", "ACKED")
        self._progress.step(f"the {_OPERATOR} has acknowledged one and shelved another")
        if self._demo.options.kills:
            self._kill()
        else:
            self._raise("pipelineFailed", "buffer/0", "ALARM", "processing block pb-7 ended with exit code 1")
        self._clear("receiveOverrun", "receive/0001", "no drops for 10 s")
        self._clear("storageLow", "buffer/0", "45 TB free")
        for (condition, source), state in _EXPECTED.items():
            self._until(condition, source, state)
        self._progress.step("alerts: the acknowledged one is gone, the latching one waits for the operator")

    def account(self) -> None:
        report, where = self._demo.report, self._name
        numbers = [entry.sequence for entry in self.entries]
        seen = dict.fromkeys(_SOURCES, 0)
        for entry in self.entries:
            if entry.alert is not None and entry.alert["source"] in seen:
                seen[entry.alert["source"]] += 1
        acted = {
            (str(one["action"]), str(one["condition"]), str(one["source"]))
            for one in (entry.action for entry in self.entries)
            if one is not None and one["operator"] == _OPERATOR
        }
        right = sum(self._state(*key) == state for key, state in _EXPECTED.items())
        report.alert_account = [
            *(
                BalanceLine(where, f"alerts of {name} that a client got", self._sent[name], seen[name])
                for name in _SOURCES
            ),
            BalanceLine(where, "actions of the operator that it got", len(self._actions), len(self._actions & acted)),
            BalanceLine(where, "numbers that came twice or out of order", 0, len(numbers) - len(_rising(numbers))),
            BalanceLine(where, "alarms whose state is right", len(_EXPECTED), right),
        ]
        report.alerts = [_line(entry) for entry in self.entries]
        report.failures += [f"alerts: {text}" for text in self._lost]
        report.failures += disagreeing("alerts", report.alert_account)

    def tidy_up(self) -> None:
        """End what the story has left, as an operator does: a demo that stays begins without an alarm."""
        self._clear("coolantWarm", "cooling/2", "18 C")
        self._clear("pipelineFailed", "buffer/0", "processing block pb-7 was started again")
        if self._state("coolantWarm", "cooling/2") == states.SHLVD:
            self._act("Unshelve", "coolantWarm", "cooling/2", comment="pump has been changed")
        over = self._progress.wait_until(lambda: not self._in(states.ACTIVE), _OVER_WITHIN, "the alarms are over")
        for alarm in self._in(states.UNACKNOWLEDGED | _LATCHED):
            command = "Reset" if alarm["state"] in _LATCHED else "Acknowledge"
            self._act(command, str(alarm["condition"]), str(alarm["source"]), comment="seen; it is over")
        left = [f"{alarm['condition']} of {alarm['source']}" for alarm in self._in(states.ACTIVE)]
        self._progress.step("alerts: no alarm is left" if over is not None else f"alerts: left: {', '.join(left)}")

    def settled(self) -> bool:
        """Return whether the client has everything that was sent and done."""
        found = sum(entry.alert is not None and entry.alert["source"] in self._sent for entry in self.entries)
        return found >= sum(self._sent.values())

    def _kill(self) -> None:
        """Kill the device server, raise an alert while it is away, and start it again."""
        expected = {**_EXPECTED, ("receiveOverrun", "receive/0001"): "ACKED"}
        del expected["storageLow", "buffer/0"]

        def raise_one() -> None:
            self._raise("pipelineFailed", "buffer/0", "ALARM", "processing block pb-7 ended with exit code 1")

        self._demo.report.alerts_recovery = took = self._demo.restart(
            INSTANCE,
            f"the device server {INSTANCE}",
            lambda *_: all(self._state(*key) == state for key, state in expected.items()),
            "alarms, with one raised meanwhile,",
            meanwhile=raise_one,
        )
        self._demo.recorder.renew([self._name])
        self._progress.step(f"its alarms are back, with the one raised meanwhile, {took:.2f} s after the start")

    def _raise(self, condition: str, source: str, severity: Severity, text: str) -> None:
        self._sources[source].raise_alert(condition, severity, text)
        self._sent[source] += 1

    def _clear(self, condition: str, source: str, text: str) -> None:
        self._sources[source].clear(condition, text)
        self._sent[source] += 1

    def _act(self, command: str, condition: str, source: str, **more: object) -> None:
        if command == "Acknowledge":
            more["occurrence"] = self._alarm(condition, source)["occurrence"]
        argument = json.dumps({"condition": condition, "source": source, "operator": _OPERATOR, **more})
        self._actions.add((command.upper(), condition, source))
        for again in range(_TRIES):
            try:
                self._ask(lambda proxy: proxy.command_inout(command, argument))
                return
            except tango.DevFailed as failed:
                # On a busy machine the broker may take longer than a call may; nothing says that it has not been done.
                if again and failed.args[0].reason == _NOT_ALLOWED:
                    self._progress.step(f"{command} had been done all the same")
                    return
                unsent = "was not sent" in failed.args[0].desc
                if not (unsent or failed.args[0].reason == _TIMED_OUT) or again == _TRIES - 1:
                    raise
                self._progress.step(f"{command} was not confirmed in time; the {_OPERATOR} tries again")

    def _until(self, condition: str, source: str, state: str) -> None:
        what = f"the alarm {condition} of {source} in the state {state}"
        self._progress.demand(lambda: self._state(condition, source) == state, FLOWS_WITHIN, what)

    def _state(self, condition: str, source: str) -> str:
        try:
            return str(self._alarm(condition, source).get("state", "NORM"))
        except tango.DevFailed:
            return "no answer"

    def _in(self, wanted: Collection[str]) -> list[dict[str, object]]:
        return [alarm for alarm in self._alarms() if alarm["state"] in wanted]

    def _alarm(self, condition: str, source: str) -> dict[str, object]:
        return next((one for one in self._alarms() if (one["condition"], one["source"]) == (condition, source)), {})

    def _alarms(self) -> list[dict[str, object]]:
        found: list[dict[str, object]] = json.loads(self._ask(lambda proxy: proxy.command_inout("GetAlarms")))
        return found

    def _ask(self, what: Callable[[tango.DeviceProxy], str]) -> str:
        return str(what(self._demo.deployment.proxy(self._name)))


def _rising(numbers: list[int]) -> list[int]:
    """Return those that are higher than all before them."""
    kept: list[int] = []
    for number in numbers:
        if not kept or number > kept[-1]:
            kept.append(number)
    return kept


def _line(entry: FollowedAlert) -> AlertLine:
    about = entry.alert or entry.action or {}
    if entry.alert is not None:
        what, text = f"{about['severity']} {about['state']}", about["text"]
    else:
        what, text = about["action"], f"{about['operator']}: {about['comment']}"
    alarm = f"{about['condition']}@{about['source']}"
    return AlertLine(sequence=entry.sequence, time=entry.time, alarm=alarm, what=what, text=text)


TABLES = 4
"""How many are sent."""
_PRODUCT = "subarray/01/gains"


class CalibrationScenario:
    """Sends tables, kills the worker that assembles them in between, and compares what came out with what was sent."""

    def __init__(self, demo: Demo) -> None:
        self._demo, self._progress = demo, demo.progress
        self._device = demo.tango_side.devices[CALIBRATION][0]
        self._announced: dict[int, str] = {}
        """Digest of each complete table, by the offset of its announcement."""

    def begin(self) -> None:
        """Let the pipeline solve and send."""
        self._demo.start_calibration(TABLES)
        self._progress.step(f"calibration: {TABLES} tables of gains, 20 MB each, in segments of 1 MB")

    def kill(self) -> None:
        self._progress.demand(lambda: self._shown("digest") != "", FLOWS_WITHIN, "a first solution is shown")
        self._progress.wait_until(lambda: bool(self._shown("assembling")), 5.0, "a table is under way")
        before = self._shown("digest")
        self._demo.report.tables_recovery = took = self._demo.restart(
            ASSEMBLER, f"{ASSEMBLER}, which assembles", lambda *_: self._shown("digest") != before, "a solution"
        )
        self._read_announcements()
        self._progress.step(f"the next solution is shown {took:.2f} s after the worker's new start")

    def account(self) -> None:
        report = self._demo.report
        self._progress.wait_until(lambda: len(self._sent()) == TABLES, FLOWS_WITHIN, "all tables are sent")
        sent = self._sent()
        newest = list(sent.values())[-1:]
        self._progress.wait_until(lambda: [self._shown("digest")] == newest, FLOWS_WITHIN, "the newest table is shown")
        # A read shows a table at once, its event comes when the attribute's sampling allows it. The attribute is a
        # last value: of two tables within its shortest gap, it shows the second.
        self._progress.wait_until(lambda: set(newest) <= self._events(), FLOWS_WITHIN, "an event of each table")
        shown = self._events()
        self._read_announcements()
        good = set(self._announced.values()) & set(sent.values())
        report.table_account = [
            BalanceLine(self._device, "tables that were sent", TABLES, len(sent)),
            BalanceLine(self._device, "of these, announced as complete", len(sent), len(good)),
            BalanceLine(
                self._device, "other announcements, or the same once more", 0, len(self._announced) - len(good)
            ),
            BalanceLine(self._device, "digests shown that no table has", 0, len(shown - set(sent.values()))),
            BalanceLine(self._device, "the newest, shown by an event", len(newest), len(shown & set(newest))),
            BalanceLine(self._device, "the newest, fetched whole and compared", 1, int(self._fetched(newest))),
        ]
        report.failures += disagreeing("calibration", report.table_account)
        if not set(newest) <= shown:
            report.failures.append(f"calibration: {self._why_no_event()}")

    def _events(self) -> set[str]:
        """Return the digests that the subscriber was given."""
        record = self._demo.recorder.records()[self._device]["digest"]
        # After a broken connection Tango gives the subscriber what it has missed as a read value.
        events = [*record.events, *([record.newest] if record.newest else [])]
        return {str(event.value) for event in events if event.value and event.quality is not Quality.INVALID}

    def _why_no_event(self) -> str:
        """Say whether the event of the digest was lost, or the subscriber is given no events at all."""
        read = self._demo.tango_side.read(self._device, ["digest"]).get("digest")
        if read is None:
            return f"no event of the newest digest, and {self._device} does not answer"
        records = self._demo.recorder.records()[self._device]
        later = {name for name, record in records.items() for event in record.events if event.received > read.time}
        if later:
            return f"the event of the newest digest was lost: later there were events of {', '.join(sorted(later))}"
        return f"the subscriber is not connected: since the newest digest's time no event came of {self._device}"

    def _sent(self) -> dict[str, str]:
        """Return the digests of the copies that the pipeline has kept, the oldest first."""
        whole = [file for file in self._demo.tables_folder.iterdir() if file.suffix != ".part"]
        copies = sorted(whole, key=lambda file: file.name)
        return {file.name: _digest(file) for file in copies}

    def _bus(self) -> KafkaBus:
        return KafkaBus(self._demo.deployment.connection, client="demo-tables")

    def _read_announcements(self) -> None:
        for record in self._bus().read_all(TABLES_TOPIC):
            table = decode_table(record.value)
            if isinstance(table, Table) and table.state == COMPLETE and table.product == _PRODUCT:
                self._announced[record.offset] = table.sha256

    def _fetched(self, newest: list[str]) -> bool:
        copy = self._demo.options.folder / "fetched"
        bus = self._bus()
        try:
            fetch(bus, find(bus, _PRODUCT), copy, self._demo.clock)
        except FacadeError as error:
            self._progress.step(f"the newest table could not be fetched: {error}")
            return False
        found = [_digest(copy)]
        copy.unlink()
        return found == newest

    def _shown(self, attribute: str) -> object:
        shown = self._demo.tango_side.read(self._device, [attribute]).get(attribute)
        return "" if shown is None or not shown.valid or shown.value is None else shown.value


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


MIRROR, TELESCOPE = "mirror", "telescope"
_CLASS = "SdpMirror"
_PERIOD = 0.1
"""Time between two values of a receptor [s]."""
_STANDING = f"SKA{MOST_SUBARRAYS:03d}"
"""A receptor that no subarray of the demo holds: it is mirrored all the time."""
_CONFIRMED_WITHIN = 30.0


class MirrorScenario:
    """Starts a telescope, has it mirrored, kills the mirror, and compares what is on the bus with what was pushed."""

    def __init__(self, demo: Demo) -> None:
        self._demo, self._progress = demo, demo.progress
        (self._device,) = demo.tango_side.devices[_CLASS]
        self._journal = demo.options.folder / "pushed.jsonl"
        held = [name for number in range(1, demo.options.subarrays + 1) for name in receptors_of(number)]
        self._held = [pointing_of(name) for name in held] if demo.options.controller else []
        self._receptors = [name.lower() for name in (*held, _STANDING)]

    def begin(self) -> None:
        self._journal.unlink(missing_ok=True)
        made, writer = self._demo.deployment, self._bus().writer()
        self._role: RoleProcess = made.play(
            TELESCOPE, receptors=self._receptors, period=_PERIOD, journal=str(self._journal)
        )
        made.await_ready(self._role)
        standing, by_resources = pointing_of(_STANDING), pointing_of("{receptor}")
        for name, pattern in (("standing", standing), ("pointing", by_resources)):
            writer.send_durably(rule(name, [pattern], self._demo.clock.now()), _CONFIRMED_WITHIN)
        self._progress.demand(lambda: self._mirrored() > 0, FLOWS_WITHIN, "a receptor is mirrored")
        self._progress.step(f"the telescope turns; {_STANDING} is mirrored, others as soon as a subarray holds them")

    def kill(self) -> None:
        """Kill the mirror while receptors are held, and start it again."""
        some = 1 + len(self._held) // self._demo.options.subarrays
        self._progress.demand(
            lambda: self._mirrored() >= some, FLOWS_WITHIN, "the receptors of a subarray are mirrored"
        )
        self._demo.report.mirror_recovery = took = self._demo.restart(
            MIRROR,
            f"the device server {MIRROR} while {self._mirrored()} receptors are mirrored",
            lambda *_: self._mirrored() >= some,
            "the receptors",
        )
        self._demo.recorder.renew([self._device])
        self._progress.step(f"they are mirrored again {took:.2f} s after the start")

    def account(self) -> None:
        self._role.call_off()
        self._progress.wait_until(self._role.result.exists, FLOWS_WITHIN, "the telescope has stopped")
        pushed = read_journal(self._journal)
        standing = {pointing_of(_STANDING): pushed.get(pointing_of(_STANDING), [])}
        self._progress.wait_until(
            lambda: not newest_wrong(standing, self._records()), FLOWS_WITHIN, "the newest value is mirrored"
        )
        self._progress.wait_until(
            lambda: self._ended() == len(self._held), FLOWS_WITHIN, "no receptor is mirrored that nobody holds"
        )
        records, report = self._records(), self._demo.report
        found = sum((account_of(pushed.get(name, []), those) for name, those in records.items()), MirrorFound())
        mirrored = sum(any(one.connection == CONNECTED for one in those) for those in records.values())
        report.mirror_account = [
            BalanceLine(self._device, "receptors that were mirrored", 1 + len(self._held), mirrored),
            BalanceLine(self._device, "of these, ended with their resources", len(self._held), self._ended()),
            BalanceLine(
                self._device, "values pushed = mirrored + said to be missing", found.pushed, found.mirrored + found.said
            ),
            BalanceLine(self._device, "values missing without a word", 0, found.unsaid),
            BalanceLine(self._device, "values that no receptor pushed", 0, found.foreign),
            BalanceLine(self._device, "numbers that are missing or came twice", 0, found.misnumbered),
            BalanceLine(
                self._device, f"newest value of {_STANDING} is right", 1, int(not newest_wrong(standing, records))
            ),
        ]
        report.failures += disagreeing("mirror", report.mirror_account)
        self._progress.step(
            f"mirrored: {found.mirrored:,} of {found.pushed:,} values; {found.said:,} said to be missing"
        )

    def _mirrored(self) -> int:
        shown = self._demo.tango_side.read(self._device, ["mirrored"]).get("mirrored")
        return 0 if shown is None or shown.value is None else int(shown.value)

    def _ended(self) -> int:
        return sum(those[-1].connection == ENDED for those in self._records().values())

    def _records(self) -> dict[str, list[TelescopeAttribute]]:
        found: dict[str, list[TelescopeAttribute]] = {}
        for record in self._bus().read_all(MODEL):
            if isinstance(message := decode_attribute(record.value), TelescopeAttribute):
                found.setdefault(message.name, []).append(message)
        return found

    def _bus(self) -> KafkaBus:
        return KafkaBus(self._demo.deployment.connection, client="demo-mirror")
