"""What devices showed at a second of the past, by the archive, and what it says of it that it does not know."""

import gc
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from facade.archive import moment, newest
from facade.archive.files import ArchiveError
from facade.archive.history import HistoryArchive
from facade.archive.moment import MomentArchive
from facade.archive.recording import HISTORY
from facade.archive.stores import FolderStore
from facade.flows.alerts.messages import Action, Alarm, Alert, action_records, alert_record, state_record
from facade.flows.commands.messages import AckMessage, CommandMessage, ack_record, command_id, command_record
from facade.flows.commands.view import as_dict
from facade.kernel.bus.dead_letters import dead_letter
from facade.kernel.bus.memory import MemoryLog
from facade.kernel.bus.port import Record
from facade.kernel.clock import SECOND, ManualClock, Time
from facade.kernel.outcome import RecordRejected
from facade.sdp import alarm_states as states
from facade.sdp import device_state
from tests.archive.test_history_archive import MINUTE, RATE, archived, record
from tests.support.archives import ICD, START, archive

SUBARRAY = "mid-sdp/subarray/01"
TOPICS = ("history", "alert-state", "alerts", "alert-actions", "commands", "command-acks")
KEY = ("receiveOverrun", "receive/0007")


class Told(dict[str, Any]):
    """A command as it is told, to which a weak reference can be made."""


def at(seconds: float) -> Time:
    return Time(START + round(seconds * SECOND))


def put(log: MemoryLog, one: Record, seconds: float) -> None:
    log.append(replace(one, timestamp_us=at(seconds), partition=0))


def report(log: MemoryLog, seconds: float, attribute: str, value: str, device: str = SUBARRAY) -> None:
    message = device_state.StateMessage(
        device=device, attribute=attribute, value=value, time=at(seconds), origin="controller"
    )
    put(log, device_state.state_record(message), seconds)


def alarm(state: str, raised: float = 10, **more: Any) -> Record:
    named = dict(zip(("condition", "source"), KEY, strict=True))
    return state_record(KEY, Alarm(**named, state=state, through=1, severity="ALARM", raised_at=at(raised), **more))


def moments(folder: Path, log: MemoryLog, *topics: str) -> MomentArchive:
    store = FolderStore(folder)
    archive(log, store, *topics)
    return MomentArchive(store, HistoryArchive(store), ICD, 50, ManualClock())


def night(folder: Path, log: MemoryLog | None = None) -> MomentArchive:
    """Make ten minutes in which an alarm comes, is acknowledged, shelved and goes, and a command runs.

    A log that is given has what happened before.
    """
    log = MemoryLog(dict.fromkeys(TOPICS, 1)) if log is None else log
    for minute in range(11):
        log.append(record(minute * MINUTE, float(minute)))
        log.append(record(minute * MINUTE, "SCANNING" if minute >= 5 else "IDLE", f"{SUBARRAY}/obsState"))
    put(log, alarm(states.UNACK), 10)
    put(log, alarm(states.ACKED), 20)
    put(log, alarm(states.ACKED, shelved_until=at(60)), 30)
    put(log, state_record(KEY, None), 100)
    raised = Alert(
        condition=KEY[0], source=KEY[1], severity="ALARM", state="ACTIVE", text="312 lost", raised_at=at(10), sequence=1
    )
    action = Action(
        id="1",
        action="ACKNOWLEDGE",
        condition=KEY[0],
        source=KEY[1],
        operator="anna",
        comment="seen",
        time=at(20),
        origin="a",
    )
    put(log, alert_record(raised), 10)
    proof, entry = action_records(action)
    put(log, proof, 20)
    put(log, entry, 20)
    put(log, alert_record(msgspec.structs.replace(action, id="2", operator="forger")), 25)
    id = command_id(at(200), 1, "Scan")
    command = CommandMessage(
        id=id, device=SUBARRAY, command="Scan", argument={"scan_id": 7}, transaction_id="t", issued=at(200),
        not_after=at(260), deadline=at(300), ceiling=at(400), repeatable=False, origin="subarray", operator="anna",
    )  # fmt: skip
    put(log, command_record(command, ()), 200)
    for status, seconds in (("ACCEPTED", 201), ("COMPLETED", 220)):
        ack = AckMessage(id=id, device=SUBARRAY, command="Scan", status=status, time=at(seconds), origin="controller")
        put(log, ack_record(ack), seconds)
    return moments(folder, log, *TOPICS)


def test_each_second_has_what_was_shown_then(tmp_path: Path) -> None:
    found = night(tmp_path)

    def alarms(seconds: float) -> list[str]:
        return [one["state"] for one in found.at(at(seconds))["alarms"]]

    def commands(seconds: float) -> list[str]:
        return [one["status"] for one in found.at(at(seconds))["commands"].get(SUBARRAY, [])]

    assert [alarms(seconds) for seconds in (9, 10, 20, 30, 59, 61, 100)] == [
        [], ["UNACK"], ["ACKED"], ["SHLVD"], ["SHLVD"], ["ACKED"], []
    ]  # fmt: skip
    assert [commands(seconds) for seconds in (199, 200, 201, 219.5, 220)] == [
        [], ["SENT"], ["ACCEPTED"], ["ACCEPTED"], ["COMPLETED"]
    ]  # fmt: skip
    before, after = found.at(at(299)), found.at(at(300.4))
    assert before["values"][SUBARRAY]["obsState"] == ["IDLE", "VALID", START / 1e6 + 240, ""]
    assert after["values"][SUBARRAY]["obsState"] == ["SCANNING", "VALID", START / 1e6 + 300, ""]
    device, _, attribute = RATE.rpartition("/")
    assert after["values"][device][attribute][0] == 5.0
    assert after["time"] == START / 1e6 + 300
    assert after["unknown"] == {}
    (command,) = after["commands"][SUBARRAY]
    assert command["operator"] == "anna"


def test_an_acknowledgement_that_was_set_aside_has_no_effect(tmp_path: Path) -> None:
    """A device server refused it, for the lack of a signature or so: the outcome is that of the next one."""
    log = MemoryLog(dict.fromkeys((*TOPICS, "dead-letters"), 1))
    log.append(record(0, 1.0))
    id = command_id(at(1), 1, "Scan")
    command = CommandMessage(
        id=id, device=SUBARRAY, command="Scan", argument={}, transaction_id="t", issued=at(1), not_after=at(60),
        deadline=at(300), ceiling=at(400), repeatable=False, origin="subarray", operator="anna",
    )  # fmt: skip
    put(log, command_record(command, ()), 1)
    for status, seconds in (("FAILED", 2), ("COMPLETED", 4)):
        ack = AckMessage(id=id, device=SUBARRAY, command="Scan", status=status, time=at(seconds), origin="controller")
        put(log, ack_record(ack), seconds)
    refused = replace(next(iter(log.records("command-acks"))), offset=0, partition=0)
    put(log, dead_letter(refused, RecordRejected("unsigned", "$", "expected a signature"), by="control"), 3)
    found = moments(tmp_path, log, "history", "commands", "command-acks", "dead-letters")
    assert [found.at(at(seconds))["commands"][SUBARRAY][0]["status"] for seconds in (3, 5)] == ["SENT", "COMPLETED"]


def scans(log: MemoryLog, count: int) -> None:
    for second in range(count):
        command = CommandMessage(
            id=command_id(at(second), 1, "Scan"), device=SUBARRAY, command="Scan", argument={}, transaction_id="t",
            issued=at(second), not_after=at(600), deadline=at(600), ceiling=at(600), repeatable=False, origin="s",
        )  # fmt: skip
        put(log, command_record(command, ()), second)


def test_a_busy_night_that_is_played_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each second has another list of commands, and each list is as long as the night is busy."""
    monkeypatch.setattr(moment, "_MOST_FOLDED", 200)
    log = MemoryLog(dict.fromkeys(TOPICS, 1))
    log.append(record(0, 1.0))
    scans(log, 60)
    found = moments(tmp_path, log, *TOPICS)
    made: list[weakref.ref[Told]] = []
    monkeypatch.setattr(moment, "as_dict", lambda one: made.append(weakref.ref(told := Told(as_dict(one)))) or told)
    for second in (*range(60), 30, 59):
        assert len(found.commands(at(0), at(second))[SUBARRAY]) == second + 1
    gc.collect()
    assert len(made) > 1000
    assert sum(one() is not None for one in made) <= 200
    monkeypatch.setattr(moment, "as_dict", None)
    assert len(found.commands(at(0), at(59))[SUBARRAY]) == 60, "the newest list is kept"


def test_newest_records_of_many_attributes_do_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of ingest nodes has tens of thousands of attributes."""
    monkeypatch.setattr(newest, "_MOST_NEWEST", 100)
    batches = [[record(at * MINUTE, float(at), f"a/b/{number}/x") for number in range(30)] for at in range(10)]
    archived(FolderStore(tmp_path), *batches)
    made: list[weakref.ref[Told]] = []

    def decode(value: bytes | None) -> Told:
        made.append(weakref.ref(told := Told()))
        return told

    found = newest.NewestRecords(FolderStore(tmp_path), HISTORY, decode)
    for _ in range(2):
        assert len(found.at(at(0), at(3600))) == 30
    gc.collect()
    assert len(made) >= 300
    assert sum(one() is not None for one in made) <= 100


def test_what_was_set_aside_is_not_read_with_its_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A storm of dead letters has files of many megabytes; only where a letter comes from is of interest."""
    log = MemoryLog(dict.fromkeys((*TOPICS, "dead-letters"), 1))
    log.append(record(0, 1.0))
    scans(log, 2)
    for seconds in (1, 600):
        put(log, dead_letter(record(0, 1.0), RecordRejected("invalid", "$", "x"), by="control"), seconds)
    found = moments(tmp_path, log, "history", "commands", "command-acks", "dead-letters")
    read: list[str] = []
    whole = newest.read_columns
    monkeypatch.setattr(newest, "read_columns", lambda store, names: read.extend(names) or whole(store, names))
    assert len(found.commands(at(0), at(5))[SUBARRAY]) == 2
    assert {name.partition("/")[0] for name in read} == {"topic=commands"}


def test_only_what_an_operator_has_done_is_in_the_log_of_alerts(tmp_path: Path) -> None:
    """An action that no device server has given is nobody's."""
    entries = night(tmp_path).at(at(60))["alerts"]
    assert [next(iter(one.keys() - {"time"})) for one in entries] == ["alert", "action"]
    assert entries[1]["action"]["operator"] == "anna"


def test_a_second_look_opens_no_file(tmp_path: Path) -> None:
    found = night(tmp_path)
    first = found.at(at(30))
    for one in tmp_path.rglob("*.parquet"):
        one.write_bytes(b"")
    assert found.at(at(30)) == first
    assert found.at(at(31))["alarms"] == first["alarms"]


def test_what_the_archive_lacks_is_unknown_and_not_nothing(tmp_path: Path) -> None:
    log = MemoryLog({"history": 1})
    log.append(record(0, 1.0))
    found = moments(tmp_path, log, "history")
    answer = found.at(at(0))
    assert (answer["alarms"], answer["commands"], answer["alerts"]) == (None, None, None)
    assert answer["unknown"]["alarms"] == "the archive has no records of the topic alert-state"
    with pytest.raises(ArchiveError, match=r"expected a time from 2027-01-15T08:00:00.*got 2027-01-15T09:00"):
        found.at(at(3600))
