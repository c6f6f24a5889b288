"""The mirror without Tango and Kafka: whatever devices and the bus do, the newest holds and no gap is unsaid."""

import dataclasses
import json
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from facade.flows.mirror import choice
from facade.flows.mirror.choice import SEARCH_AGAIN, Choice, matcher
from facade.flows.mirror.composition import CONFLICT, DISCONNECTED, find_disconnected, find_faults, own_devices
from facade.flows.mirror.device import AGAIN, ALIVE
from facade.flows.mirror.messages import (
    MODEL,
    OVERLAP,
    RULES,
    SILENT,
    MirrorRule,
    TelescopeAttribute,
    attribute_record,
    decode_attribute,
    device_of,
    rule_record,
)
from facade.flows.mirror.mirror import CHECK, REPEAT, Mirror
from facade.flows.mirror.source import (
    AttributeValue,
    DeviceJob,
    DeviceLost,
    DeviceSearch,
    JobResult,
    SearchResult,
    SourceEvent,
    SourceTask,
)
from facade.kernel.bus.port import Record
from facade.kernel.clock import ManualClock
from facade.kernel.icd.load import load
from facade.kernel.outcome import USED
from facade.sdp.bounded_writer import MOST_UNDER_WAY
from facade.sdp.device_state import StateMessage

DISH, OTHER = "mid-dish/dish-manager/ska001", "mid-dish/dish-manager/ska002"
AZ, EL, T = f"{DISH}/azimuth", f"{DISH}/elevation", f"{DISH}/temperature"


class Telescope:
    """Devices whose values are data; see `facade.flows.mirror.source.DeviceSource`."""

    most_jobs = 128

    def __init__(self, clock: ManualClock, values: dict[str, Any], polled: Iterable[str] = ()) -> None:
        self.clock, self.values, self.polled = clock, dict(values), set(polled)
        self.times = dict.fromkeys(values, self.now())
        self.away: set[str] = set()
        self.defined = set(map(device_of, values))
        """Devices that the database has."""
        self.hanging: set[str] = set()
        """Devices that give no answer for now."""
        self.failing: set[str] = set()
        """Attributes whose subscriptions fail for no reason of theirs."""
        self.subscribed: set[str] = set()
        self.is_deaf = False
        """Whether events are lost although there is a subscription."""
        self.asked: list[SourceTask] = []
        self.asked_at: list[tuple[float, SourceTask]] = []
        """The same, each with the time [s]."""
        self.waiting: list[SourceTask] = []
        self.news: list[SourceEvent] = []

    def now(self) -> int:
        return self.clock.now_us()

    def set(self, name: str, value: Any) -> None:
        self.values[name], self.times[name] = value, self.now()
        if name in self.subscribed and device_of(name) not in self.away and not self.is_deaf:
            self.news.append(self.seen(name))

    def seen(self, name: str) -> AttributeValue:
        if name not in self.values:
            return AttributeValue(name, error="API_AttrNotFound: there is none")
        time = self.now() if name in self.polled else self.times[name]
        return AttributeValue(name, self.values[name], "DevDouble", "VALID", time)

    def die(self, device: str) -> None:
        self.away.add(device)
        self.subscribed = {name for name in self.subscribed if device_of(name) != device}

    def begin(self, task: SourceTask) -> None:
        if isinstance(task, DeviceJob):
            assert not any(isinstance(one, DeviceJob) and one.device == task.device for one in self.waiting), (
                "one at a time"
            )
        self.asked.append(task)
        self.asked_at.append((self.clock.now(), task))
        self.waiting.append(task)

    def answer(self) -> None:
        """Do what was asked for."""
        tasks, self.waiting = self.waiting, []
        for task in tasks:
            if isinstance(task, DeviceSearch):
                defined = frozenset(filter(matcher(task.pattern), self.defined))
                self.news.append(SearchResult(task.pattern, defined, defined))
            elif task.device in self.hanging:
                self.waiting.append(task)
            elif task.device in self.away:
                self.news.append(JobResult(task, trouble="API_CantConnect: nobody answers"))
            else:
                if task.anew:
                    self.subscribed = {name for name in self.subscribed if device_of(name) != task.device}
                self.subscribed -= set(task.leave)
                seen = tuple(self.seen(name) for name in task.read)
                failed = frozenset(task.subscribe) & self.failing
                pushed = (frozenset(task.subscribe) & self.values.keys()) - self.polled - failed
                self.subscribed |= pushed
                names = frozenset(name for name in self.values if device_of(name) == task.device)
                self.news.append(JobResult(task, seen, pushed, failed, names=names if task.names else None))

    def take(self) -> Sequence[SourceEvent]:
        found, self.news = self.news, []
        return found

    def wait(self, timeout: float) -> None: ...

    def close(self) -> None: ...


class Log:
    """A bus that takes records, or holds them up."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.is_stuck = False
        self._mark = 0

    def send(self, record: Record) -> None:
        self.records.append(record)

    def mark(self) -> int:
        self._mark += 1
        return self._mark

    def settled(self, mark: int) -> bool:
        return not self.is_stuck

    def failures(self, topic: str) -> int:
        return 0


class Bench:
    """A mirror that mirrors some attributes."""

    def __init__(self, *patterns: str, polled: Iterable[str] = (), before: Sequence[TelescopeAttribute] = ()) -> None:
        self.clock = ManualClock()
        self.telescope = Telescope(self.clock, {AZ: 1.0, EL: 2.0, T: 20.0, f"{OTHER}/azimuth": 7.0}, polled)
        self.log = Log()
        self.choice = Choice(own_devices(load()))
        self.mirror = Mirror(
            *(self.telescope, self.log, self.choice), known=lambda: True, clock=self.clock, incarnation="second"
        )
        self.mirror.recall(map(attribute_record, before))
        if patterns:
            self.rule("one", *patterns)

    def rule(self, name: str, *patterns: str, period: float = 1.0) -> None:
        rule = MirrorRule(rule=name, patterns=list(patterns), period=period, time=1, origin="test")
        assert self.choice.fold(rule_record(rule), count=True) == USED

    def report(self, attribute: str, value: object, device: str = "mid-sdp/subarray/01") -> None:
        text = json.dumps(value)
        self.choice.take(StateMessage(device=device, attribute=attribute, value=text, time=1, origin="c"))

    def turn(self, seconds: float = 0.01) -> None:
        self.clock.sleep(seconds)
        self.telescope.answer()
        self.mirror.step()

    def settle(self, seconds: float = 1.0) -> None:
        """Let time pass in short steps."""
        end = self.clock.now() + seconds
        while self.clock.now() < end:
            self.turn(0.05)

    def said(self, name: str) -> list[TelescopeAttribute]:
        """Return all records about an attribute."""
        found = [decode_attribute(one.value) for one in self.log.records if one.key == name.encode()]
        assert all(isinstance(one, TelescopeAttribute) for one in found)
        assert {one.topic for one in self.log.records} <= {MODEL}
        return found

    def new(self, name: str) -> list[tuple[Any, str, bool]]:
        """Return value, connection and gap of each record with a number of its own; numbers have no holes."""
        found = {one.number: one for one in self.said(name)}
        assert all(b == a + 1 for a, b in pairwise(found))
        return [(one.value, one.connection, one.gap) for one in found.values()]


def test_values_are_known_at_once_and_each_event_is_a_record():
    bench = Bench(AZ, EL)
    bench.settle()
    bench.telescope.set(AZ, 1.25)
    bench.telescope.set(AZ, 1.5)
    bench.turn()
    assert bench.new(AZ) == [(1.0, "CONNECTED", False), (1.25, "CONNECTED", False), (1.5, "CONNECTED", False)]
    assert [one.by for one in bench.said(AZ)] == ["POLL", "EVENT", "EVENT"]
    assert bench.new(EL) == [(2.0, "CONNECTED", False)]
    assert bench.mirror.gaps == 0


def test_what_is_not_pushed_is_read_each_period_and_only_changes_have_a_number():
    bench = Bench(polled=[T])
    bench.rule("slow", T, period=2.0)
    bench.rule("quick", T, period=0.5)
    bench.settle(5.0)
    reads = sum(T in one.read for one in bench.telescope.asked if isinstance(one, DeviceJob))
    assert 8 <= reads <= 12
    bench.telescope.set(T, 21.0)
    bench.settle()
    assert bench.new(T) == [(20.0, "CONNECTED", False), (21.0, "CONNECTED", False)]
    assert {one.by for one in bench.said(T)} == {"POLL"}


def test_all_attributes_of_a_device_that_answers_slowly_have_their_turn():
    """A job asks for 50 of them; the first 50 are due again before a slow device has answered."""
    names = [f"{DISH}/a{number:03}" for number in range(120)]
    bench = Bench(polled=names)
    bench.telescope.values |= dict.fromkeys(names, 1.0)
    bench.rule("all", f"{DISH}/a*", period=0.5)
    bench.settle()
    bench.telescope.values |= dict.fromkeys(names, 2.0)
    for _ in range(6):
        bench.turn(1.0)
    assert {bench.new(name)[-1][0] for name in names} == {2.0}


def test_the_newest_is_repeated_with_its_number_as_a_sign_of_life():
    bench = Bench(AZ)
    bench.settle(2 * REPEAT + 2)
    assert [one.number for one in bench.said(AZ)] == [1, 1, 1]


def test_a_device_that_does_not_answer_is_one_fault_until_it_is_back_or_not_wanted():
    bench = Bench()
    assert find_faults(bench.mirror, "mid-sdp/mirror/01") is None
    bench.rule("one", AZ, EL)
    bench.rule("two", f"{OTHER}/azimuth")
    bench.settle()
    assert find_faults(bench.mirror, "mid-sdp/mirror/01") == {}
    bench.telescope.die(DISH)
    bench.telescope.die(OTHER)
    bench.settle(ALIVE + AGAIN)
    found = find_faults(bench.mirror, "mid-sdp/mirror/01") or {}
    assert set(found) == {(DISCONNECTED, DISH), (DISCONNECTED, OTHER)}
    fault = found[DISCONNECTED, DISH]
    assert (fault.text, dict(fault.values)) == (
        "2 attributes are not mirrored: API_CantConnect: nobody answers",
        {"attributes": 2},
    )
    bench.telescope.away.remove(DISH)
    bench.choice.fold(Record(topic=RULES, key=b"two", value=None), count=True)
    bench.settle(2 * AGAIN)
    assert find_faults(bench.mirror, "mid-sdp/mirror/01") == {}


@pytest.mark.parametrize("is_busy", [False, True])
def test_events_that_have_stopped_are_subscribed_to_anew(is_busy: bool):
    bench = Bench(AZ)
    bench.settle()
    bench.telescope.is_deaf = True
    bench.telescope.set(AZ, 5.0)
    if is_busy:
        bench.telescope.hanging = {DISH}
        bench.settle(ALIVE + 0.1)
    bench.telescope.news.append(DeviceLost(DISH, "API_EventTimeout"))
    bench.turn()
    bench.telescope.is_deaf, bench.telescope.hanging = False, set()
    bench.settle(2 * AGAIN)
    assert bench.new(AZ)[1:] == [(1.0, "DISCONNECTED", False), (5.0, "CONNECTED", True)]
    assert sum(one.anew for one in bench.telescope.asked if isinstance(one, DeviceJob)) == 2


def test_events_of_a_connection_that_is_given_up_hide_no_gap():
    """Its subscriptions end one after the other, which may take long: what is pushed behind the first end is missed."""
    bench = Bench(AZ, EL)
    bench.settle()
    bench.telescope.news.append(DeviceLost(DISH, "API_EventTimeout"))
    bench.turn()
    bench.telescope.hanging = {DISH}
    bench.settle(2 * AGAIN)
    bench.telescope.set(AZ, 5.0)
    bench.turn()
    bench.telescope.subscribed.remove(AZ)
    for value in (6.0, 7.0):
        bench.telescope.set(AZ, value)
        bench.turn()
    bench.telescope.hanging = set()
    bench.settle(2 * AGAIN)
    assert bench.new(AZ)[1:] == [(1.0, "DISCONNECTED", False), (7.0, "CONNECTED", True)]


def test_an_event_that_comes_after_the_read_of_its_value_is_no_gap():
    bench = Bench(AZ)
    bench.settle()
    bench.telescope.is_deaf = True
    bench.telescope.set(AZ, 5.0)
    event = bench.telescope.seen(AZ)
    bench.telescope.is_deaf = False
    while not bench.mirror.entries[AZ].is_doubtful:
        bench.turn(0.05)
    bench.telescope.news.append(event)
    bench.settle(2 * CHECK)
    assert bench.new(AZ)[1:] == [(5.0, "CONNECTED", False)]


BEFORE = TelescopeAttribute(
    name=AZ, number=41, time=1, value=0.5, type="DevDouble", quality="VALID", connection="CONNECTED", by="EVENT"
)


def written(bench: Bench, at: float, incarnation: str) -> Record:
    """Return a record of some mirror as the broker gives it."""
    message = msgspec.structs.replace(BEFORE, incarnation=incarnation, epoch=bench.mirror.own.epoch)
    return dataclasses.replace(attribute_record(message), timestamp_us=round(at * 1e6))


def test_another_mirror_that_writes_as_well_is_an_alarm_and_one_that_was_killed_is_not():
    bench = Bench(AZ)
    bench.settle()
    bench.mirror.writers.take([written(bench, at, "second") for at in (100.0, 110.0)])
    bench.mirror.writers.take([written(bench, 100.0 + OVERLAP / 1e6, "killed")])
    assert find_faults(bench.mirror, "mid-sdp/mirror/01") == {}
    bench.mirror.writers.take([written(bench, at, "third") for at in (101.0, 109.0)])
    faults = find_faults(bench.mirror, "mid-sdp/mirror/01") or {}
    assert list(faults) == [(CONFLICT, "mid-sdp/mirror/01")]
    assert "third" in faults[CONFLICT, "mid-sdp/mirror/01"].text
    bench.mirror.writers.take([written(bench, 110.0 + SILENT / 1e6, "second")])
    assert find_faults(bench.mirror, "mid-sdp/mirror/01") == {}, "the other one has ended"


def test_what_no_rule_chooses_any_more_is_ended_also_after_a_kill():
    bench = Bench(EL, before=[BEFORE])
    bench.settle(REPEAT + 1)
    assert bench.new(AZ) == [(0.5, "ENDED", True)]
    assert len(bench.said(AZ)) == 1, "there is no sign of life of it"


def test_a_pattern_is_searched_for_and_searched_for_again():
    bench = Bench(f"{DISH}/*")
    bench.settle()
    assert set(bench.mirror.entries) == {AZ, EL, T}
    bench.telescope.values[f"{DISH}/new"] = 1.0
    bench.telescope.times[f"{DISH}/new"] = 1
    bench.settle(SEARCH_AGAIN + ALIVE)
    assert f"{DISH}/new" in bench.mirror.entries


def test_receptors_and_pointing_are_mirrored_while_resources_are_held():
    bench = Bench("mid-dish/dish-manager/{receptor}/azimuth")
    bench.settle()
    assert bench.mirror.entries == {}
    bench.report("resources", {"receptors": ["SKA001"]})
    bench.report("resources", {"receptors": ["SKA001", "SKA002"]}, "mid-sdp/subarray/02")
    bench.report("pointingAttributes", [EL.upper()])
    bench.report("obsState", "IDLE")
    bench.settle()
    assert set(bench.mirror.entries) == {AZ, f"{OTHER}/azimuth", EL}
    bench.report("resources", {})
    bench.report("pointingAttributes", [])
    bench.settle()
    assert set(bench.mirror.entries) == {AZ, f"{OTHER}/azimuth"}
    bench.report("resources", None, "mid-sdp/subarray/02")
    bench.settle()
    assert bench.mirror.entries == {}
    assert bench.new(AZ)[-1] == (1.0, "ENDED", False)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("mid-sdp/Ingest/0001/heapsTotal", "the facade's own"),
        ("tango://other:10000/mid-sdp/mirror/01/gaps", "the facade's own"),
        ("dserver/SdpFacade/mirror/State", "the facade's own"),
        ("mid/b/c", "expected domain/family/member/attribute"),
        ("a/b/c/d/e", "expected domain/family/member/attribute"),
    ],
)
def test_what_is_never_mirrored_is_named(name: str, why: str):
    bench = Bench(AZ, name)
    bench.settle()
    ((refused, said),) = bench.mirror.searches.troubles.items()
    assert (refused, set(bench.mirror.entries)) == (name.lower(), {AZ})
    assert said.startswith(why) or why in said


@pytest.mark.parametrize("silence", [0.0, REPEAT + 1], ids=["values", "and a sign of life"])
def test_a_bus_that_takes_nothing_gets_the_newest_later_and_the_gap_is_said(silence: float):
    bench = Bench(AZ, EL)
    bench.settle()
    bench.log.is_stuck = True
    for number in range(MOST_UNDER_WAY + 10):
        bench.telescope.set(AZ, float(number))
        bench.turn(0.001)
    bench.settle(silence)
    assert bench.mirror.outbox.waiting <= MOST_UNDER_WAY + 2
    bench.log.is_stuck = False
    bench.turn()
    last = bench.said(AZ)[-1]
    assert (last.value, last.gap, last.number) == (MOST_UNDER_WAY + 9.0, True, MOST_UNDER_WAY + 11)
    assert bench.mirror.gaps > 0


def asked(bench: Bench, device: str = DISH) -> list[float]:
    """Return when a device was asked."""
    return [at for at, task in bench.telescope.asked_at if isinstance(task, DeviceJob) and task.device == device]


def test_a_device_that_does_not_answer_is_left_alone_for_longer_and_longer():
    bench = Bench(AZ)
    bench.telescope.die(DISH)
    bench.settle(100.0)
    pauses = [round(after - before) for before, after in pairwise(asked(bench))]
    assert pauses == [1, 2, 4, 8, 16, 30, 30]
    bench.telescope.away.clear()
    bench.settle(30.0)
    assert bench.new(AZ)[-1][1] == "CONNECTED"
    began = len(asked(bench))
    bench.telescope.die(DISH)
    bench.settle(ALIVE + 3.5)
    assert len(asked(bench)) - began >= 3, "it begins with short pauses again"


def test_events_that_stop_again_and_again_do_not_put_off_the_next_attempt():
    """Tango tells of each attribute of a device that is away, each 10 s."""
    bench = Bench(AZ)
    bench.telescope.die(DISH)
    bench.settle(20.0)
    before = len(asked(bench))
    for _ in range(22):
        bench.telescope.news.append(DeviceLost(DISH, "API_EventTimeout"))
        bench.settle(2.0)
    assert len(asked(bench)) - before == 2


def many(count: int) -> dict[str, float]:
    return {f"mid-dish/many/{number:04}/x": float(number) for number in range(count)}


def test_devices_that_hang_take_no_turn_from_those_that_answer():
    """Each good one is read as often as without them; at most half of what may be asked at once is for the bad ones."""
    good, bad = many(20), {f"mid-dish/bad/{number:03}/x": 0.0 for number in range(100)}
    reads = {}
    for hanging in (False, True):
        bench = Bench()
        bench.telescope.values |= good | bad
        bench.telescope.times |= dict.fromkeys(good | bad, 1)
        bench.telescope.polled.update(good, bad)
        bench.rule("all", *good, *bad)
        bench.settle(5.0)
        if hanging:
            bench.telescope.hanging = set(map(device_of, bad))
        most = 0
        for turn in range(600):
            bench.turn(0.05)
            waiting = [one for one in bench.telescope.waiting if isinstance(one, DeviceJob)]
            stuck = [one for one in waiting if one.device in bench.telescope.hanging]
            if turn > 200:  # by then all have failed once
                most = max(most, len(stuck))
            if turn % 60 == 59:  # Tango gives up
                bench.telescope.waiting = [one for one in bench.telescope.waiting if one not in stuck]
                bench.telescope.news += [JobResult(one, trouble="API_DeviceTimedOut") for one in stuck]
        counts = [len(asked(bench, device_of(name))) for name in good]
        reads[hanging] = min(counts)
        if hanging:
            assert 0 < most <= bench.telescope.most_jobs // 2
            assert bench.new(next(iter(bad)))[-1][1] == "DISCONNECTED"
    assert reads[True] >= reads[False] - 1


def test_a_value_that_nobody_has_looked_at_is_not_repeated_as_one_that_holds():
    bench = Bench(AZ, f"{OTHER}/azimuth", polled=[AZ])
    bench.settle()
    bench.telescope.hanging = {DISH}
    bench.settle(REPEAT + 2)
    away = bench.said(AZ)[-1]
    assert (away.value, away.connection, away.quality) == (1.0, "DISCONNECTED", "INVALID")
    assert away.error.startswith("not looked at for 1")
    assert bench.mirror.disconnected()
    bench.telescope.hanging = set()
    bench.settle()
    assert bench.new(AZ)[1:] == [(1.0, "DISCONNECTED", False), (1.0, "CONNECTED", True)]
    assert len(bench.new(f"{OTHER}/azimuth")) == 1


@pytest.mark.parametrize("is_again", [False, True], ids=["running", "after a restart"])
def test_a_device_that_the_tango_database_has_no_more_is_forgotten(is_again: bool):
    bench = Bench("mid-dish/*/ska00*/azi*", before=[BEFORE] if is_again else [])
    if not is_again:
        bench.settle()
    bench.telescope.die(DISH)
    bench.telescope.defined.remove(DISH)
    bench.settle(SEARCH_AGAIN + ALIVE)
    assert set(bench.mirror.entries) == {f"{OTHER}/azimuth"}
    assert bench.new(AZ)[-1][1] == "ENDED"
    assert find_faults(bench.mirror, "mid-sdp/mirror/01") == {}
    again = Bench("mid-dish/*/ska00*/azi*", before=bench.said(AZ)[-1:])
    again.telescope.die(DISH)
    again.telescope.defined.remove(DISH)
    again.settle(SEARCH_AGAIN)
    assert again.said(AZ) == [], "nor does the next mirror know it"


def test_a_pushed_attribute_that_cannot_be_read_is_not_shown_as_valid():
    bench = Bench(AZ, EL)
    bench.settle(20)
    value = bench.telescope.values.pop(AZ)
    bench.settle(10)
    assert (bench.said(AZ)[-1].quality, bench.said(EL)[-1].quality) == ("INVALID", "VALID")
    assert "API_AttrNotFound" in bench.said(AZ)[-1].error
    bench.telescope.values[AZ] = value  # with the time of before, by the device's clock
    bench.settle(10)
    back = bench.said(AZ)[-1]
    assert (back.value, back.quality, back.gap) == (value, "VALID", True)


def test_an_attribute_that_its_device_has_no_more_is_forgotten_unless_it_is_named():
    bench = Bench(f"{DISH}/*", EL)
    bench.settle()
    del bench.telescope.values[AZ], bench.telescope.values[EL]
    bench.settle(SEARCH_AGAIN + ALIVE)
    assert set(bench.mirror.entries) == {EL, T}
    assert bench.new(AZ)[-1][1] == "ENDED"


def test_what_has_ended_is_mirrored_again_while_its_device_is_away():
    """A subarray takes a receptor again: that its device does not answer must be told."""
    bench = Bench(f"{DISH}/*")
    bench.settle()
    bench.rule("one", EL)
    bench.settle()
    bench.telescope.die(DISH)
    bench.rule("one", f"{DISH}/*")
    bench.settle(2 * ALIVE)
    assert bench.new(AZ)[-1][:2] == (1.0, "DISCONNECTED")


def test_a_database_that_hangs_holds_one_thread_and_no_other_database():
    bench = Bench("a/*/1/x", "a/*/2/x", "tango://other:10000/a/*/1/x")
    bench.mirror.step()
    bench.mirror.step()
    assert [one.pattern for one in bench.telescope.waiting if isinstance(one, DeviceSearch)] == [
        "a/*/1",
        "tango://other:10000/a/*/1",
    ]
    bench.telescope.waiting.clear()
    for _ in range(3):
        bench.telescope.news.append(SearchResult("a/*/1", trouble="no database"))
        bench.mirror.step()
    assert [one.pattern for one in bench.telescope.waiting if isinstance(one, DeviceSearch)] == ["a/*/2"]


def test_a_slow_database_is_asked_for_each_pattern_in_turn():
    bench = Bench("a/*/1/x", "a/*/2/x", "a/*/3/x")
    for _ in range(12):
        bench.turn(SEARCH_AGAIN)
    asked = [one.pattern for one in bench.telescope.asked if isinstance(one, DeviceSearch)]
    assert asked[:6] == ["a/*/1", "a/*/2", "a/*/3"] * 2


def test_a_pattern_that_fits_too_much_keeps_what_it_has_and_says_so(monkeypatch: pytest.MonkeyPatch):
    bench = Bench(f"{DISH}/*")
    bench.settle()
    monkeypatch.setattr(choice, "MOST_FOUND", 3)
    bench.telescope.values[f"{DISH}/new"] = 1.0
    bench.settle(SEARCH_AGAIN + ALIVE)
    assert set(bench.mirror.entries) == {AZ, EL, T}
    assert bench.mirror.refused()[f"{DISH}/*"].startswith("expected at most 3 attributes, found 4")


def test_every_device_that_is_away_is_found():
    """One that is left out would count as one that is back: how many alarms there are is not decided here."""
    bench = Bench()
    bench.telescope.values |= many(100)
    bench.telescope.times |= dict.fromkeys(many(100), 1)
    bench.rule("all", *many(100))
    bench.telescope.away = set(map(device_of, many(100)))
    bench.settle()
    assert (find_disconnected(bench.mirror) or {}).keys() == {(DISCONNECTED, device_of(name)) for name in many(100)}
