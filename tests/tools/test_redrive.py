"""Dead letters: what they say, and what of them goes back to its topic."""

import json
import os
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import msgspec
import pytest
from typer.testing import CliRunner

from facade.admin.redrive import (
    FIRST,
    FROM,
    Redrive,
    RedriveFate,
    Selection,
    plan,
    takes_back,
)
from facade.flows.overview.views import BusView, Overview
from facade.kernel.bus.dead_letters import TOPIC, dead_letter
from facade.kernel.bus.port import BusHealth, Record
from facade.kernel.cli.app import app
from facade.kernel.clock import ManualClock
from facade.kernel.config import Settings
from facade.kernel.errors import BusError
from facade.kernel.icd.load import load
from facade.kernel.outcome import USED, RecordRejected
from facade.kernel.runtime.accounts import RunningAccount
from facade.sdp.stream_accounts import StreamTotals, WorkerAccounts
from facade.tools.dead_letters import _client, trials_of
from tests.support.heaps import BASE_US, heap
from tests.support.simulated_bus import MemoryBroker

ICD = load()
HEAPS = "ingest.heaps"


class Bus:
    """The topics, and who sets records aside."""

    def __init__(self) -> None:
        self.clock = ManualClock(1_800_000_000.0)
        self.broker = MemoryBroker(self.clock, dict.fromkeys([*ICD.topics, "no.such"], 1))

    def reject(self, topic: str = HEAPS, reason: str = "unknown-node", *, by: str = "w", **record: object) -> Record:
        """Let a record come to a topic and become a dead letter; gives the record."""
        self.broker.append(Record(topic=topic, **{"key": b"3", "value": b"{}", **record}))
        came = self.broker.read(topic)[-1]
        self.broker.append(dead_letter(came, RecordRejected(reason, "$.node", "expected 0 to 3, got 7"), by=by))
        return came

    def write(self, records: list[Record]) -> None:
        for record in records:
            self.broker.append(record)

    def letters(self) -> list[Record]:
        return self.broker.read(TOPIC)

    def redrive(
        self, selection: Selection | None = None, *, again: bool = False, most: int = 2
    ) -> Counter[RedriveFate]:
        """Run one to its end, and say what became of how many letters."""
        letters = self.letters()
        made = plan(letters, ICD, selection or Selection(), again=again)
        running = Redrive(iter(letters), made.chosen, self, self.clock, most=most)
        while running.step():
            pass
        assert running.done == len(made.chosen)
        fates: Counter[RedriveFate] = Counter()
        for (_, _, fate), count in made.counts.items():
            fates[fate] += count
        return fates


@pytest.fixture
def bus() -> Bus:
    return Bus()


def test_what_goes_back_is_the_record_and_says_where_it_was(bus: Bus) -> None:
    came = bus.reject(headers=(("trace", b"x"),))
    assert bus.redrive() == {RedriveFate.PUT_BACK: 1}
    first, back = bus.broker.read(HEAPS)
    assert (back.key, back.value) == (came.key, came.value)
    assert back.headers == (("trace", b"x"), (FROM, b"0:0"), (FIRST, f"{HEAPS}/{came.partition}/0".encode()))
    assert first == came


def test_each_goes_back_once_unless_told(bus: Bus) -> None:
    for _ in range(5):
        bus.reject()
    assert bus.redrive(Selection(offsets=[(0, 1), (0, 3)])) == {RedriveFate.PUT_BACK: 2}
    assert bus.redrive() == {RedriveFate.DONE: 2, RedriveFate.PUT_BACK: 3}
    assert bus.redrive() == {RedriveFate.DONE: 5}
    assert len(bus.broker.read(HEAPS)) == 10
    assert bus.redrive(again=True) == {RedriveFate.PUT_BACK: 5}


def test_what_comes_back_is_not_put_back_again_and_again(bus: Bus) -> None:
    """The replay of old chased its own output: 10 became 19,730 letters in 90 s."""
    bus.reject()
    bus.redrive()
    came = bus.broker.read(HEAPS)[-1]
    bus.broker.append(dead_letter(came, RecordRejected("unknown-node", "$", ""), by="w"))
    assert bus.redrive() == {RedriveFate.DONE: 1, RedriveFate.RETURNED: 1}
    assert bus.redrive(Selection(offsets=[(0, 2)]), again=True) == {RedriveFate.PUT_BACK: 1}
    headers = [name for name, _ in bus.broker.read(HEAPS)[-1].headers]
    assert headers == [FROM, FIRST], "each of them once, however often it was put back"
    assert dict(bus.broker.read(HEAPS)[-1].headers)[FIRST].endswith(b"/0"), "where it was at first"


def test_one_record_of_which_two_wrote_letters_goes_back_once(bus: Bus) -> None:
    came = bus.reject(by="control")
    bus.broker.append(dead_letter(came, RecordRejected("unknown-node", "$", ""), by="subarray"))
    assert bus.redrive() == {RedriveFate.PUT_BACK: 1, RedriveFate.COPY: 1}
    assert bus.redrive() == {RedriveFate.DONE: 2}


def test_a_record_of_a_topic_that_was_made_again_is_another_one(bus: Bus) -> None:
    came = bus.reject()
    bus.redrive()
    again = replace(came, timestamp_us=came.timestamp_us + 1)
    bus.broker.append(dead_letter(again, RecordRejected("unknown-node", "$", ""), by="w"))
    assert bus.redrive() == {RedriveFate.DONE: 1, RedriveFate.PUT_BACK: 1}


@pytest.mark.parametrize(
    ("topic", "record", "fate"),
    [
        ("commands", {}, RedriveFate.TOPIC),
        ("quality", {}, RedriveFate.TOPIC),
        ("accounts", {}, RedriveFate.TOPIC),
        ("no.such", {}, RedriveFate.TOPIC),
        (HEAPS, {"value": None}, RedriveFate.NO_VALUE),
        ("flagging", {"value": bytes(1_048_400)}, RedriveFate.TOO_LARGE),
    ],
)
def test_what_cannot_go_back_holds_up_nothing(
    bus: Bus, topic: str, record: dict[str, object], fate: RedriveFate
) -> None:
    bus.reject(topic, **record)
    bus.reject()
    assert bus.redrive() == {fate: 1, RedriveFate.PUT_BACK: 1}


def test_the_topics_that_take_records_back() -> None:
    taking = {name for name, topic in ICD.topics.items() if takes_back(ICD, topic)}
    streams = {HEAPS, "ingest.buffers", "flagging", "storage", "logs", "metrics"}
    assert taking == {*streams, "alerts", "alert-packets", "calibration"}


def test_a_transaction_that_fails_ends_the_run_and_the_next_goes_on(bus: Bus) -> None:
    for _ in range(5):
        bus.reject()
    write, calls = bus.write, []

    def fail(records: list[Record]) -> None:
        calls.append(records)
        if len(calls) == 2:
            raise BusError("the broker was killed")
        write(records)

    bus.write = fail
    with pytest.raises(BusError):
        bus.redrive()
    assert [len(records) for records in calls] == [5, 5], "two records with the mark of each, and their count"
    bus.write = write
    assert bus.redrive() == {RedriveFate.DONE: 2, RedriveFate.PUT_BACK: 3}


def test_a_transaction_is_bounded_by_all_that_its_records_have(bus: Bus) -> None:
    """A record may consist of headers."""
    for _ in range(4):
        bus.reject(headers=(("a", bytes(5_000_000)),))
    write, sizes = bus.write, []
    bus.write = lambda records: (sizes.append(len(records)), write(records))
    bus.redrive(most=100)
    assert sizes == [5, 5]


def test_the_account_says_how_many_of_the_records_consumed_were_put_back(bus: Bus) -> None:
    """Also of a stream that no worker takes, and whatever a device server said of it meanwhile."""
    for topic in (HEAPS, HEAPS, HEAPS, "alerts"):
        bus.reject(topic)
    bus.redrive(Selection(offsets=[(0, 0)]))
    bus.redrive()
    accounts = WorkerAccounts()
    worker, reader = RunningAccount(), StreamTotals()
    worker.log, worker.consumed, worker.used, worker.dead_lettered, worker.offset_to = "id", 6, 3, 3, 6
    reader.account.consumed = reader.account.used = 2
    entry = worker.entry("aggregate-0", HEAPS, 0, bus.clock.now_us())
    bus.broker.append(Record(topic="accounts", key=b"x", value=msgspec.json.encode(entry)))
    for record in bus.broker.read("accounts"):
        assert accounts.fold(record, count=True) == USED
    kept = WorkerAccounts()
    kept.restore(accounts.as_dict())
    readers = SimpleNamespace(streams={"alerts": reader})
    seen = Overview(ICD, BusHealth(connected=True), kept, readers, [])
    shown = {
        name: one.value for _, name, one in BusView("bus", ICD.classes["SdpBus"], seen).readings(bus.clock.now_us())
    }
    figures = ("Consumed", "Used", "DeadLettered", "Balance", "Redriven")
    assert [shown[f"ingestHeaps{name}"] for name in figures] == [6, 3, 3, 0, 3]
    assert [shown[f"alerts{name}"] for name in figures] == [2, 2, 0, 0, 1]


def _heap(**changes: object) -> bytes:
    return json.dumps(heap() | changes).encode()


@pytest.mark.parametrize(
    ("topic", "record", "fate"),
    [
        (HEAPS, {"value": _heap()}, RedriveFate.PUT_BACK),
        (HEAPS, {"value": _heap(time=BASE_US - 60_000_000)}, RedriveFate.LATE),
        (HEAPS, {"value": _heap(time=BASE_US + 7_200_000_000)}, RedriveFate.FAILS),
        (HEAPS, {"value": _heap(node=999)}, RedriveFate.FAILS),
        (HEAPS, {"value": _heap(seq="x")}, RedriveFate.FAILS),
        (HEAPS, {"value": _heap(schema="heap/9")}, RedriveFate.FAILS),
        (HEAPS, {"value": b"{"}, RedriveFate.FAILS),
        (HEAPS, {"value": b""}, RedriveFate.FAILS),
        (HEAPS, {"value": b"[" * 5000}, RedriveFate.FAILS),
        (HEAPS, {"value": b"\xff\xff\xff\xff broken batch"}, RedriveFate.FAILS),
        ("alerts", {"value": b"{}"}, RedriveFate.FAILS),
        ("logs", {"value": b"<34>1 2027-01-15T08:00:00Z host app - - - text"}, RedriveFate.PUT_BACK),
        ("logs", {"value": b"text"}, RedriveFate.FAILS),
        ("alert-packets", {"value": b"text"}, RedriveFate.FAILS),
        ("calibration", {"value": b"bytes"}, RedriveFate.FAILS),
    ],
)
def test_records_that_would_fail_again_are_left_out_and_counted(
    bus: Bus, topic: str, record: dict[str, object], fate: RedriveFate
) -> None:
    """Of 75 records that a redrive put back, 73 became dead letters again."""
    bus.reject(topic, "any", **record)
    trial = trials_of(ICD, Settings(nodes=4), bus.clock)
    made = plan(bus.letters(), ICD, Selection(), trial)
    assert made.counts == {(topic, "any", fate): 1}
    assert len(made.chosen) == (fate is not RedriveFate.FAILS)
    assert set(made.failures) == ({(topic, "any")} if fate is RedriveFate.FAILS else set())
    assert len(plan(bus.letters(), ICD, Selection(), trial, again=True).chosen) == 1


def test_a_user_without_a_name_is_told_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """The image runs as such a user; `getpass.getuser` raises there."""

    def unknown() -> str:
        raise KeyError("getpwuid(): uid not found: 10001")

    monkeypatch.setattr("getpass.getuser", unknown)
    assert _client().startswith(f"uid {os.getuid()} at ")


def test_the_sub_commands_say_what_is_not_there_and_what_was_done(monkeypatch: pytest.MonkeyPatch, bus: Bus) -> None:
    bus.reject()
    (letter,) = bus.letters()
    monkeypatch.setattr("facade.tools.dead_letters.find_range", lambda *_, **__: {0: (0, 1)})
    monkeypatch.setattr("facade.tools.dead_letters.read_range", lambda *_, **__: iter([letter]))
    monkeypatch.setattr("facade.tools.dead_letters.KafkaTransactionWriter", lambda *_: bus)
    for words, said in (
        (["show", "0:1"], "no dead letter 0:1: partition 0 has offsets 0 to 0"),
        (["show", "7:0"], "no dead letter 7:0: partition 7 has none"),
        (["redrive", "7:0", "0:0", "0:999"], "no dead letters of this kind are at 7:0, 0:999\n"),
        (["redrive", "--reason", "schema"], "no dead letters of this kind of the last 1d"),
        (["redrive", "--again", "--yes"], "1 records were put back"),
    ):
        done = CliRunner().invoke(app, ["dead-letters", *words])
        assert said in f"{done.output}{done.exception}"
