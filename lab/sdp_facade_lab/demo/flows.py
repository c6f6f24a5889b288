"""The flows of the demo, each with its account."""

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from pathlib import Path

import msgspec
import tango
from msgspec.json import decode

from facade.flows.alerts.follower import FollowedAlert
from facade.flows.alerts.source import AlertSource
from facade.flows.blocks.source import BLOCKS, FAILED, STATES, read_block
from facade.flows.commands.messages import ACKS, COMMANDS, AckMessage, CommandMessage
from facade.flows.commands.past import One
from facade.flows.mirror.messages import CONNECTED, ENDED, MODEL, TelescopeAttribute, decode_attribute
from facade.flows.tables.fetch import fetch, find
from facade.flows.tables.messages import COMPLETE, decode_table
from facade.flows.tables.messages import TABLES as TABLES_TOPIC
from facade.kernel.bus.kafka.bus import KafkaBus
from facade.kernel.bus.kafka.producer import KafkaWriter
from facade.kernel.bus.port import BusHealth
from facade.kernel.config import MOST_SUBARRAYS
from facade.kernel.errors import FacadeError, InfraError
from facade.kernel.reading import Quality
from facade.kernel.severities import Severity
from facade.sdk.controller.simulator.controller import ExecutionLine
from facade.sdp import alarm_states as states
from facade.sdp.messages import ProcessingBlock, Table
from sdp_facade_clients.alert_subscription import AlertSubscription
from sdp_facade_clients.terminal import ALERTS, CALIBRATION
from sdp_facade_lab.command_account import FoundCommands, first_outcomes
from sdp_facade_lab.demo.command_account import (
    balance,
    calls,
    compare_orders,
    families,
    order_lines,
    timeline,
    unfinished,
)
from sdp_facade_lab.demo.options import ENDS_WITHIN, FLOWS_WITHIN, OBSERVED_WITHIN
from sdp_facade_lab.demo.plan import AFTER, OBSERVATION, SWITCHED_ON, read_journal, receptors_of
from sdp_facade_lab.demo.report import AlertLine
from sdp_facade_lab.demo.system import ASSEMBLER, CONTROLLER, SUBARRAY_SERVER, Demo
from sdp_facade_lab.heap_account import BalanceLine
from sdp_facade_lab.mirror_account import MirrorFound, account_of, newest_wrong
from sdp_facade_lab.roles import RoleProcess
from sdp_facade_lab.telescope import pointing_of, read_pushed, rule, telescope

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


class AlertChapter:
    """Raises, acknowledges, shelves and clears alerts, and compares them with the entries of a subscribed client."""

    def __init__(self, demo: Demo) -> None:
        self._demo, self._progress = demo, demo.progress
        self._name = demo.tango_side.devices[ALERTS][0]
        writer = KafkaWriter(demo.deployment.connection_of("alert-source"), health=BusHealth(), client="demo-source")
        self._sources = {name: AlertSource(name, writer, demo.clock) for name in _SOURCES}
        self._actions: set[tuple[str, str, str]] = set()
        """Action, condition and source, without the id: if the answer to a first try was lost, the second try is a dead
        letter."""
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
        self._client.close()

    def play(self) -> None:
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
        self._progress.wait_until(self._settled, FLOWS_WITHIN, "the client has each alert")
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
        figures = {f"alerts of {name} that a client got": (self._sent[name], seen[name]) for name in _SOURCES}
        figures |= {
            "actions of the operator that it got": (len(self._actions), len(self._actions & acted)),
            "numbers that came twice or out of order": (0, len(numbers) - len(_rising(numbers))),
            "alarms whose state is right": (len(_EXPECTED), right),
        }
        self._demo.balance("alerts", _lines(where, figures))
        report.alerts = [_line(entry) for entry in self.entries]
        report.failures += [f"alerts: {text}" for text in self._lost]

    def tidy_up(self) -> None:
        """End what the story has left, as an operator does: a demo that stays begins without an alarm."""
        self._clear("coolantWarm", "cooling/2", "18 C")
        self._clear("pipelineFailed", "buffer/0", "processing block pb-7 was started again")
        if self._state("coolantWarm", "cooling/2") == states.SHLVD:
            self._act("Unshelve", "coolantWarm", "cooling/2", comment="pump has been changed")
            # Shown as shelved for a moment longer, it would be neither waited for nor acknowledged.
            shelved = partial(self._state, "coolantWarm", "cooling/2")
            self._progress.wait_until(lambda: shelved() != states.SHLVD, FLOWS_WITHIN, "the alarm is unshelved")
        active = ", ".join(f"{alarm['condition']} of {alarm['source']}" for alarm in self._in(states.ACTIVE))
        what = f"these alarms are over: {active}"
        over = self._progress.wait_until(lambda: not self._in(states.ACTIVE), _OVER_WITHIN, what)
        for alarm in self._in(states.UNACKNOWLEDGED | _LATCHED):
            command = "Reset" if alarm["state"] in _LATCHED else "Acknowledge"
            self._act(command, str(alarm["condition"]), str(alarm["source"]), comment="seen; it is over")
        left = [f"{alarm['condition']} of {alarm['source']}" for alarm in self._in(states.ACTIVE)]
        self._progress.step("alerts: no alarm is left" if over is not None else f"alerts: left: {', '.join(left)}")

    def _settled(self) -> bool:
        """Return whether the client has everything that was sent and done."""
        found = sum(entry.alert is not None and entry.alert["source"] in self._sent for entry in self.entries)
        return found >= sum(self._sent.values())

    def _kill(self) -> None:
        """Kill the device server, raise an alert while it is away, and start it again."""
        expected = {**_EXPECTED, ("receiveOverrun", "receive/0001"): "ACKED"}
        del expected["storageLow", "buffer/0"]

        def raise_one() -> None:
            self._raise("pipelineFailed", "buffer/0", "ALARM", "processing block pb-7 ended with exit code 1")

        self._demo.crash(
            "alerts",
            INSTANCE,
            f"the device server {INSTANCE}",
            lambda *_: all(self._state(*key) == state for key, state in expected.items()),
            meanwhile=raise_one,
        )
        self._demo.recorder.renew([self._name])

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
                self._demo.deployment.proxy(self._name).command_inout(command, argument)
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
        return [alarm for alarm in self._demo.deployment.alarms(self._name) if alarm["state"] in wanted]

    def _alarm(self, condition: str, source: str) -> dict[str, object]:
        known = self._demo.deployment.alarms(self._name)
        return next((one for one in known if (one["condition"], one["source"]) == (condition, source)), {})


def _lines(where: str, figures: Mapping[str, tuple[int, int]]) -> list[BalanceLine]:
    """Return a line of the account for each figure, which has the expected and the found number."""
    return [BalanceLine(where, what, *figure) for what, figure in figures.items()]


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


class TableChapter:
    """Sends tables, kills the worker that assembles them, and compares announced and shown tables with those sent."""

    def __init__(self, demo: Demo) -> None:
        self._demo, self._progress = demo, demo.progress
        self._device = demo.tango_side.devices[CALIBRATION][0]
        self._announced: dict[int, str] = {}
        """Digest of each complete table, by the offset of its announcement."""

    def begin(self) -> None:
        self._demo.start_calibration(TABLES)
        self._progress.step(f"calibration: {TABLES} tables of gains, 20 MB each, in segments of 1 MB")

    def kill(self) -> None:
        self._progress.demand(lambda: self._shown("digest") != "", FLOWS_WITHIN, "a first solution is shown")
        self._progress.wait_until(lambda: bool(self._shown("assembling")), 5.0, "a table is under way")
        before = self._shown("digest")
        self._demo.crash(
            "tables", ASSEMBLER, f"{ASSEMBLER}, which assembles", lambda *_: self._shown("digest") != before
        )
        self._read_announcements()

    def account(self) -> None:
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
        figures = {
            "tables that were sent": (TABLES, len(sent)),
            "of these, announced as complete": (len(sent), len(good)),
            "other announcements, or the same once more": (0, len(self._announced) - len(good)),
            "digests shown that no table has": (0, len(shown - set(sent.values()))),
            "the newest, shown by an event": (len(newest), len(shown & set(newest))),
            "the newest, fetched whole and compared": (1, int(self._fetched(newest))),
        }
        self._demo.balance("tables", _lines(self._device, figures))

    def _events(self) -> set[str]:
        record = self._demo.recorder.records()[self._device]["digest"]
        # After a broken connection Tango gives the subscriber the newest value as read.
        events = [*record.events, *([record.newest] if record.newest else [])]
        return {str(event.value) for event in events if event.value and event.quality is not Quality.INVALID}

    def _sent(self) -> dict[str, str]:
        """Return the digests of the copies that the pipeline has kept, the oldest first."""
        whole = [file for file in self._demo.tables_folder.iterdir() if file.suffix != ".part"]
        copies = sorted(whole, key=lambda file: file.name)
        return {file.name: _digest(file) for file in copies}

    def _bus(self) -> KafkaBus:
        return self._demo.look("demo-tables")

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


MIRROR = "mirror"
_CLASS = "SdpMirror"
_PERIOD = 0.1
"""Time between two values of a receptor [s]."""
_STANDING = f"SKA{MOST_SUBARRAYS:03d}"
"""A receptor that no subarray of the demo holds: it is mirrored all the time."""
_CONFIRMED_WITHIN = 30.0


class MirrorChapter:
    """Starts a telescope, kills its mirror, and compares the mirrored values with those pushed."""

    def __init__(self, demo: Demo) -> None:
        self._demo, self._progress = demo, demo.progress
        (self._device,) = demo.tango_side.devices[_CLASS]
        self._journal = demo.options.folder / "pushed.jsonl"
        held = [name for number in range(1, demo.options.subarrays + 1) for name in receptors_of(number)]
        self._held = [pointing_of(name) for name in held] if demo.options.controller else []
        self._receptors = [name.lower() for name in (*held, _STANDING)]

    def begin(self) -> None:
        self._journal.unlink(missing_ok=True)
        made = self._demo.deployment
        self._role: RoleProcess = made.play(
            telescope, login=None, receptors=self._receptors, period=_PERIOD, journal=str(self._journal)
        )
        writer = KafkaBus(made.connection_of("operator-tool"), client="demo-mirror").writer()
        made.await_ready(self._role)
        standing, by_resources = pointing_of(_STANDING), pointing_of("{receptor}")
        for name, pattern in (("standing", standing), ("pointing", by_resources)):
            writer.send_durably(rule(name, [pattern], self._demo.clock.now()), _CONFIRMED_WITHIN)
        self._progress.demand(lambda: self._mirrored() > 0, FLOWS_WITHIN, "a receptor is mirrored")
        self._progress.step(f"the telescope turns; {_STANDING} is mirrored, others as soon as a subarray holds them")

    def kill(self) -> None:
        """Kill the mirror while receptors are held, and start it again; without a controller, none is."""
        if not self._held:
            return
        some = 1 + len(self._held) // self._demo.options.subarrays
        self._progress.demand(
            lambda: self._mirrored() >= some, FLOWS_WITHIN, "the receptors of a subarray are mirrored"
        )
        self._demo.crash(
            "mirror",
            MIRROR,
            f"the device server {MIRROR} while {self._mirrored()} receptors are mirrored",
            lambda *_: self._mirrored() >= some,
        )
        self._demo.recorder.renew([self._device])

    def account(self) -> None:
        self._role.call_off()
        self._progress.wait_until(self._role.result.exists, FLOWS_WITHIN, "the telescope has stopped")
        pushed = read_pushed(self._journal)
        standing = {pointing_of(_STANDING): pushed.get(pointing_of(_STANDING), [])}
        self._progress.wait_until(
            lambda: not newest_wrong(standing, self._records()), FLOWS_WITHIN, "the newest value is mirrored"
        )
        self._progress.wait_until(
            lambda: self._ended() == len(self._held), FLOWS_WITHIN, "no receptor is mirrored that nobody holds"
        )
        records = self._records()
        found = sum((account_of(pushed.get(name, []), those) for name, those in records.items()), MirrorFound())
        mirrored = sum(any(one.connection == CONNECTED for one in those) for those in records.values())
        figures = {
            "receptors that were mirrored": (1 + len(self._held), mirrored),
            "of these, ended with their resources": (len(self._held), self._ended()),
            "values pushed = mirrored + said to be missing": (found.pushed, found.mirrored + found.said),
            "values missing without a word": (0, found.unsaid),
            "values that no receptor pushed": (0, found.foreign),
            "numbers that are missing or came twice": (0, found.misnumbered),
            f"newest value of {_STANDING} is right": (1, int(not newest_wrong(standing, records))),
        }
        self._demo.balance("mirror", _lines(self._device, figures))
        self._progress.step(
            f"mirrored: {found.mirrored:,} of {found.pushed:,} values; {found.said:,} said to be missing"
        )

    def _mirrored(self) -> int:
        return int(self._demo.deployment.value(self._device, "mirrored") or 0)

    def _ended(self) -> int:
        return sum(those[-1].connection == ENDED for those in self._records().values())

    def _records(self) -> dict[str, list[TelescopeAttribute]]:
        found: dict[str, list[TelescopeAttribute]] = {}
        for record in self._demo.look("demo-mirror").read_all(MODEL):
            if isinstance(message := decode_attribute(record.value), TelescopeAttribute):
                found.setdefault(message.name, []).append(message)
        return found


class CommandChapter:
    """TM observes with all subarrays at once; the device server and the controller are killed while it does."""

    def __init__(self, demo: Demo) -> None:
        self._demo, self._progress, self._side = demo, demo.progress, demo.tango_side
        self._first = self._side.subarrays[0]

    def begin(self) -> None:
        side = self._side
        self._demo.start_observation()
        self._progress.step(f"TM begins to observe with {', '.join(side.subarrays)}")
        if self._demo.options.orders:
            are_on = partial(self._all_show, "State", "ON")
            self._progress.demand(are_on, FLOWS_WITHIN, "SDP's On has come to all subarrays")
            self._progress.step(
                f"TM has switched on {side.sdp}; its controller has switched on the subarrays by orders"
            )

    def kill_server(self) -> None:
        """Kill the device server of the subarrays while a command is executed."""
        self._progress.check = self._demo.check_observation
        killed = f"the device server {SUBARRAY_SERVER} {self._await_execution('AssignResources')}"
        self._demo.crash("subarrays", SUBARRAY_SERVER, killed, lambda *_: self._side.subarrays_known())
        self._demo.recorder.renew(self._side.subarrays)

    def kill_controller(self) -> None:
        """Kill the controller in the middle of a command that must not be repeated."""
        command = "Configure"
        self._demo.configure_file.touch()
        killed = f"the controller {self._await_execution(command)}"
        self._demo.crash("controller", CONTROLLER, killed, lambda *_: not self._side.executes(self._first, command))
        self._progress.check = self._demo.processes.check

    def account(self) -> None:
        """Wait for the end of the observation, and put the accounts of its commands and orders into the report."""
        progress, report, file = self._progress, self._demo.report, self._demo.journal_file
        progress.demand(lambda: read_journal(file).finished, OBSERVED_WITHIN, "the end of the observation")
        # TM goes by obsState, which may be shown before the last command's outcome is.
        progress.wait_until(self._side.nothing_pending, ENDS_WITHIN, "each command has an outcome")
        found, journal = self._found(), read_journal(file)
        report.commands = timeline(journal.given, found)
        report.accounts["commands"], wrong = balance(found, orders=False)
        report.failures += [*(f"TM: {error}" for error in journal.errors), *wrong]
        report.failures += unfinished(journal.given, self._ends)
        progress.step(f"the observation has ended: {sum(1 for one in journal.given if one.id)} commands")
        if self._demo.options.orders:
            self._account_for_orders()

    def _account_for_orders(self) -> None:
        self._progress.wait_until(
            lambda: all(line.outcome for line in order_lines(self._given())), ENDS_WITHIN, "the outcome of each order"
        )
        given, report = self._given(), self._demo.report
        report.orders = order_lines(given)
        lines, wrong = compare_orders(given, self._found(), len(self._side.subarrays))
        self._demo.balance("orders", lines)
        report.failures += wrong
        count = sum(1 for line in report.orders if line.depth)
        self._progress.step(f"for these, controllers have given {count} orders, down to the workers")

    @property
    def _ends(self) -> dict[str, str]:
        """The last command that TM gives each device."""
        if not self._demo.options.orders:
            return dict.fromkeys(self._side.subarrays, OBSERVATION[-1].command)
        return {self._side.sdp: AFTER[-1].command, **dict.fromkeys(self._side.subarrays, SWITCHED_ON[-1].command)}

    def _await_execution(self, command: str) -> str:
        """Wait until the first subarray executes a command; return the moment, as a busy machine may see it late."""
        has_begun = partial(self._side.has_begun, self._first, command)
        self._progress.demand(has_begun, FLOWS_WITHIN, f"{self._first} executes {command}")
        is_seen = self._side.executes(self._first, command)
        return f"while {self._first} executes {command}" if is_seen else f"after {self._first} executed {command}"

    def _all_show(self, attribute: str, value: str) -> bool:
        return all(str(self._demo.deployment.value(one, attribute)) == value for one in self._side.subarrays)

    def _found(self) -> FoundCommands:
        demo, bus = self._demo, self._demo.look("demo-commands")
        try:
            commands = [decode(record.value or b"", type=CommandMessage) for record in bus.read_all(COMMANDS)]
            acks = [decode(record.value or b"", type=AckMessage) for record in bus.read_all(ACKS)]
            told = [one for device in self._ends for one in decode(self._side.history(device))]
            lines = demo.executions_file.read_bytes().splitlines()
            executions = [decode(line, type=ExecutionLine) for line in lines]
        except (msgspec.DecodeError, FileNotFoundError) as error:
            raise InfraError(f"what became of the commands cannot be read: {error}") from error
        # Devices of SDP's own tell of no command.
        silent = {one.id for one in commands if one.device not in self._ends}
        shown = {id: outcome for id, outcome in first_outcomes(acks).items() if id in silent}
        return FoundCommands(
            calls=calls(read_journal(demo.journal_file).given),
            commands=commands,
            acks=acks,
            shown={**shown, **{one["id"]: one["status"] for one in told}},
            executions=executions,
        )

    def _given(self) -> list[One]:
        """Return what TM gave, with the orders below it."""
        bus = self._demo.look("demo-orders")
        commands, acks = bus.read_all(COMMANDS), bus.read_all(ACKS)
        return families([one.id for one in read_journal(self._demo.journal_file).given if one.id], commands, acks)


_CONDITION = "processingBlockFailed"


class BlockChapter:
    """A processing block of each observation fails: what devices and alerts tell of blocks is compared with the topic.

    Parameters
    ----------
    entries
        What a client was given of alerts, which grows.
    """

    def __init__(self, demo: Demo, entries: list[FollowedAlert]) -> None:
        self._demo, self._entries = demo, entries

    def account(self) -> None:
        progress = self._demo.progress
        newest = {
            block.pb_id: block
            for record in self._demo.look("demo-blocks").read_all(BLOCKS)
            if isinstance(block := read_block(record), ProcessingBlock)
        }
        states = {device: Counter[str]() for device in self._demo.tango_side.subarrays}
        for block in newest.values():
            states[f"mid-sdp/subarray/{block.subarray:02d}"][block.state] += 1
        shown = partial(self._lines, states)
        progress.wait_until(lambda: all(one.agrees for one in shown()), FLOWS_WITHIN, "devices show the blocks")
        alarmed = partial(_alarmed, self._entries)
        progress.wait_until(lambda: len(alarmed()) == len(states), FLOWS_WITHIN, "an alarm for each block that failed")
        failed = [
            BalanceLine(one, "has a block that failed", 1, int(count[FAILED] > 0)) for one, count in states.items()
        ]
        alarms = [BalanceLine(one, f"alarm {_CONDITION}", 1, int(one[-2:] in alarmed())) for one in states]
        self._demo.balance("blocks", [*shown(), *failed, *alarms])

    def _lines(self, states: Mapping[str, Counter[str]]) -> list[BalanceLine]:
        lines = []
        for device, count in states.items():
            names = {state: f"blocks{state.title()}" for state in STATES}
            shown = self._demo.deployment.values(device, *names.values())
            lines += [
                BalanceLine(device, f"processing blocks {state}", count[state], shown.get(name))
                for state, name in names.items()
            ]
        return lines


def _alarmed(entries: Iterable[FollowedAlert]) -> set[str]:
    """Return the numbers of the subarrays for which the alarm was raised."""
    alerts = [entry.alert for entry in list(entries) if entry.alert is not None]
    return {alert["source"].rpartition("/")[2] for alert in alerts if alert["condition"] == _CONDITION}
