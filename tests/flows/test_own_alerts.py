"""The facade's own alerts: what is found wrong is told once, cleared once, and survives restarts and a broker away."""

from types import SimpleNamespace

import msgspec
import pytest

from facade.flows.alerts.messages import MOST_MISSING, Alarm, decode_alert, state_record
from facade.flows.alerts.reporter import OwnAlerts, ReportedBefore
from facade.flows.alerts.suppression import Suppression
from facade.flows.overview.views import Overview
from facade.kernel.bus.port import BusHealth
from facade.kernel.clock import ManualClock, as_time
from facade.kernel.icd.load import load
from facade.kernel.outcome import USED
from facade.kernel.runtime.flow import Fault
from facade.sdp.stream_accounts import StreamTotals, WorkerAccounts
from tests.support.overview import NOW, heartbeat, overview
from tests.support.simulated_bus import MemoryBroker, MemoryBus

KEY = ("workerGone", "sdp-facade")
WRONG = {KEY: Fault("no worker", "CRITICAL")}


class Bench:
    def __init__(self, others: str = "", gather=lambda found: found) -> None:
        self.others, self.gather = others, gather
        self.clock = ManualClock()
        self.broker = MemoryBroker(self.clock, {"alerts": 1})
        self.bus = MemoryBus(self.broker)
        self.found: dict | None = {}
        self.unjudged: set = set()
        self.first = 0
        self.start()

    def start(self, *alarms: Alarm, seconds: float = 2.0) -> None:
        """Begin a life, which first tells nothing for a while."""
        self.before = before = ReportedBefore(self.first)
        for alarm in alarms:
            assert before.fold(state_record(alarm.key, alarm), count=True) is USED
        find = lambda now: self.found  # noqa: E731
        self.own = OwnAlerts(
            find,
            before,
            self.bus,
            mine=overview().finds if not self.others else lambda key: True,
            known=lambda: True,
            clock=self.clock,
            judges=lambda key: key not in self.unjudged,
            gather=self.gather,
            others=self.others,
        )
        self.clock.sleep(seconds)

    def look(self, times: int = 4) -> list[tuple[str, str]]:
        """Let it look some times; gives all that is on the bus."""
        for _ in range(times):
            self.own.perform()
            self.clock.sleep(1.0)
        return [(a.state, a.severity) for a in self.alerts()]

    def alerts(self):
        return [decode_alert(record.value) for record in self.broker.read("alerts")]


@pytest.fixture
def bench():
    return Bench()


def test_a_fault_is_told_once_it_lasts_and_cleared_when_it_has_gone(bench):
    assert bench.look() == []
    bench.found = WRONG
    assert bench.look(2) == []
    assert bench.look(10) == [("ACTIVE", "CRITICAL")]
    bench.found = {}
    assert bench.look(10) == [("ACTIVE", "CRITICAL"), ("CLEARED", "CRITICAL")]
    raised, cleared = bench.alerts()
    assert (raised.raised_at, raised.sequence + 1) == (cleared.raised_at, cleared.sequence)


def test_a_fault_that_flickers_at_the_start_is_not_told(bench):
    for found in (WRONG, WRONG, {}, WRONG, {}):
        bench.found = found
        assert bench.look(1) == []


def test_what_was_not_judged_stays_as_it_was_told():
    """After a start, absence says nothing of it: neither it nor the alarm that explains it is cleared and raised."""
    gather = Suppression(load().conditions, load().locations, 50).gathered
    bench = Bench("rest", gather)  # all alarms are its own
    cause = ("processesGone", "all")
    gone = {("serverGone", f"sdp-facade/ingest-{number:02d}"): Fault("silent", "CRITICAL") for number in range(5)}
    bench.found = gone
    bench.look()
    assert states(bench) == dict.fromkeys([cause, *gone], "ACTIVE")
    told = bench.alerts()
    bench.start(*map(alarm, told))
    bench.found, bench.unjudged = {}, {*gone}
    bench.look(60)
    assert bench.alerts() == told
    bench.found = gone
    bench.look(10)
    bench.unjudged = set()
    bench.look(10)
    assert bench.alerts() == told, "it was judged, and found again"
    first = min(gone)
    bench.found, bench.unjudged = {}, {first}
    bench.look(10)
    assert states(bench) == dict.fromkeys([cause, *gone], "CLEARED") | {first: "ACTIVE"}


def test_an_alarm_of_another_source_is_not_cleared_though_this_server_raises_its_condition_too():
    """At their start, the servers of logs and of the mirror cleared errorsRising that somebody else had raised."""
    bench = Bench("logs/0")  # raises alarms about any source
    bench.first = bench.clock.now_us()
    bench.start()
    bench.found = many(1)
    bench.look()
    (own,) = bench.alerts()
    key = ("errorsRising", "correlator")
    foreign = Alarm(condition=key[0], source=key[1], state="UNACK", through=9, source_raised_at=1, source_sequence=7)
    bench.found = {}
    bench.start(alarm(own), foreign)
    bench.look(10)
    assert states(bench) == {own.key: "CLEARED"}


def states(bench: Bench) -> dict:
    return {one.key: one.state for one in bench.alerts()}


def alarm(one) -> Alarm:
    """Return the state of the alarm of an alert, after somebody has acknowledged it."""
    return Alarm(
        condition=one.condition,
        source=one.source,
        state="ACKED",
        severity=one.severity,
        text=one.text,
        through=99,
        source_raised_at=one.raised_at,
        source_sequence=one.sequence,
    )


def test_a_change_of_severity_is_told(bench):
    bench.found = WRONG
    bench.look()
    bench.found = {KEY: Fault("fewer workers", "WARNING")}
    assert bench.look() == [("ACTIVE", "CRITICAL"), ("ACTIVE", "WARNING")]


def test_a_text_stays_true_and_is_no_flood(bench):
    for count in range(60):
        bench.found = {KEY: Fault(f"{count} records", "WARNING")}
        bench.look(1)
    alerts = bench.alerts()
    assert 5 <= len(alerts) <= 7
    assert int(alerts[-1].text.split()[0]) >= 50
    assert len({one.raised_at for one in alerts}) == 1, "it is one occurrence"
    bench.found = {KEY: Fault("61 records", "WARNING")}
    bench.look(20)
    assert [one.text for one in bench.alerts()[len(alerts) :]] == ["61 records"]


def many(count: int, first: int = 0, severity: str = "WARNING") -> dict:
    """Return faults of one cause; the ones with the most errors come first, as in `LogFlow.find`."""
    return {("errorsRising", f"c{number:02d}"): Fault("rising", severity) for number in range(first, first + count)}


def standing(bench: Bench) -> dict[str, str]:
    """Return the alarms that stand by what was told, and their texts."""
    found = {}
    for one in bench.alerts():
        if one.state == "ACTIVE":
            found[one.source] = one.text
        else:
            found.pop(one.source)
    return found


def test_what_was_told_is_gone_only_when_it_is_gone_itself_however_many_there_are():
    bench = Bench(others="logs/0")
    first = many(40)
    bench.found = first
    bench.look()
    told = standing(bench)
    assert told.keys() == {*(f"c{number:02d}" for number in range(32)), "logs/0"}
    assert told["logs/0"] == "and 8 more: c32, c33, c34, c35, c36, c37, c38, c39"
    bench.found = dict(reversed(first.items())) | many(100, 40)  # others are worse, and come first
    bench.look(20)
    assert {one.state for one in bench.alerts()} == {"ACTIVE"}
    assert standing(bench).keys() == told.keys()
    assert standing(bench)["logs/0"] == "and 108 more: c39, c38, c37, c36, c35, c34, c33, c32, ..."
    # After a restart as well, whatever is found first.
    last = {one.source: one for one in bench.alerts() if one.state == "ACTIVE"}
    bench.start(*map(alarm, last.values()))
    bench.look(20)
    assert {one.state for one in bench.alerts()} == {"ACTIVE"}
    del bench.found["errorsRising", "c03"]
    bench.look(20)
    assert [one.source for one in bench.alerts() if one.state == "CLEARED"] == ["c03"]
    assert standing(bench).keys() == told.keys() - {"c03"} | {"c39"}, "there is room for another"
    bench.found = many(20)
    bench.look(20)
    assert standing(bench).keys() == {f"c{number:02d}" for number in range(20)}
    assert {one.text for one in bench.alerts() if one.source == "logs/0" and one.state == "CLEARED"} == {
        "over; it was: and 107 more: c38, c37, c36, c35, c34, c33, c32, c40, ..."
    }


def test_the_alarm_about_the_others_is_as_severe_as_the_worst_of_them():
    bench = Bench(others="logs/0")
    bench.found = many(33) | many(1, 90, "CRITICAL") | {("componentSilent", "c00"): Fault("silent", "WARNING")}
    bench.look()
    (one,) = (one for one in bench.alerts() if one.source == "logs/0")
    assert (one.condition, one.severity, one.values) == ("errorsRising", "CRITICAL", {"more": 2})


def test_faults_that_take_turns_before_they_are_told_are_told_all_the_same():
    bench = Bench(others="logs/0")
    for turn in range(4):
        bench.found = dict(sorted(many(40).items(), reverse=turn % 2 == 1))
        bench.look(1)
    assert len(bench.alerts()) == 33


def test_while_nothing_can_be_known_nothing_is_told(bench):
    bench.found = WRONG
    bench.look()
    bench.found = None
    assert bench.look(10) == [("ACTIVE", "CRITICAL")]


def test_what_the_broker_did_not_take_is_sent_again(bench):
    bench.found = WRONG
    bench.look(2)
    bench.bus.away = True
    assert bench.look(5) == []
    bench.bus.away = False
    assert bench.look(5) == [("ACTIVE", "CRITICAL")]


def test_what_was_told_before_a_restart_is_cleared_after_it_and_not_raised_again(bench):
    alarm = Alarm(condition=KEY[0], source=KEY[1], state="ACKED", through=9, source_sequence=7, severity="CRITICAL")
    alarm.text = "no worker"
    bench.start(alarm)
    bench.found = WRONG
    assert bench.look(5) == []
    bench.found = {}
    assert bench.look(5) == [("CLEARED", "CRITICAL")]
    assert bench.alerts()[0].sequence == 8


def test_a_second_try_is_no_second_occurrence(bench):
    bench.found = WRONG
    bench.look(2)
    lost = iter([1])
    bench.bus.failures = lambda topic: 1 if topic == "alerts" and not next(lost, None) else 0
    assert bench.look(6) == [("ACTIVE", "CRITICAL")] * 2
    first, second = bench.alerts()
    assert (first.raised_at, first.sequence + 1) == (second.raised_at, second.sequence)


def test_what_was_told_before_a_restart_is_cleared_also_when_its_state_comes_late(bench):
    bench.found = WRONG
    bench.look()
    bench.start()  # SdpAlerts is away: there is no state of the alarm yet
    bench.found = {}
    bench.look()
    alarm = Alarm(condition=KEY[0], source=KEY[1], state="UNACK", through=1, source_sequence=1, severity="CRITICAL")
    bench.before.fold(state_record(KEY, alarm), count=True)  # it is back
    assert bench.look() == [("ACTIVE", "CRITICAL"), ("CLEARED", "CRITICAL")]
    assert bench.look() == [("ACTIVE", "CRITICAL"), ("CLEARED", "CRITICAL")]  # though the state says no other thing yet
    assert [one.sequence for one in bench.alerts()] == [1, 2]


def test_a_fault_that_is_not_seen_once_is_not_cleared(bench):
    bench.found = WRONG
    bench.look()
    bench.found = {}
    bench.look(1)
    bench.found = WRONG
    assert bench.look(5) == [("ACTIVE", "CRITICAL")]


def test_what_others_told_is_left_alone(bench):
    bench.start(Alarm(condition="receiveOverrun", source="receive/1", state="UNACK", through=1))
    assert bench.look(5) == []


def test_no_number_is_given_to_two_alerts_though_the_states_are_behind() -> None:
    """Of what an earlier life has told, only the first alert has come to the states."""
    alarm = Alarm(condition=KEY[0], source=KEY[1], state="UNACK", through=1, source_sequence=1001, severity="CRITICAL")
    earlier, later = ReportedBefore(first=1000), ReportedBefore(first=9000)
    told = [earlier.next_sequence(KEY[1]) for _ in range(3)]
    later.fold(state_record(KEY, alarm), count=True)
    assert {later.next_sequence(KEY[1])}.isdisjoint(told)
    alarm = msgspec.structs.replace(alarm, source_sequence=9900)  # by a clock that was set back since
    later.fold(state_record(KEY, alarm), count=True)
    assert later.next_sequence(KEY[1]) == 9901


def test_numbers_of_two_lives_lie_far_apart(bench: Bench) -> None:
    """Else `alertsMissing` takes the step between them for lost alerts. So a life that tells anything lasts a second.

    The text of an alarm that was raised before is told at the first look.
    """
    alarm = Alarm(condition=KEY[0], source=KEY[1], state="UNACK", through=1, source_sequence=1, severity="CRITICAL")
    bench.found = WRONG
    bench.start(alarm, seconds=0.0)
    began = bench.clock.now()
    while not bench.alerts():
        bench.own.perform()
        bench.clock.sleep(0.05)
    first = round(began * 1e6)
    assert bench.clock.now_us() - (first + len(bench.alerts())) > MOST_MISSING


@pytest.mark.parametrize(
    ("change", "keys"),
    [
        ({}, set()),
        ({"connected": False}, None),
        ({"reporting": (1, 2, 3)}, {("streamSilent", "ingest/0000")}),
        ({"reporting": ()}, set()),
        ({"controllers": heartbeat(at=NOW - 60)}, {("controllerSilent", "sdp-facade/a")}),
        ({"controllers": heartbeat() | heartbeat(name="b")}, {("twoControllers", "sdp-facade")}),  # each executes all
        ({"controllers": {}}, set()),
        ({"unbalanced": ("ingest.heaps",)}, {("streamUnbalanced", "sdp-facade/ingest.heaps")}),
        ({"lagging": (("ingest.heaps", 10**9),)}, {("streamLagging", "sdp-facade/ingest.heaps")}),
    ],
)
def test_what_is_found_wrong(change, keys):
    shown = overview(**change)
    assert shown.find(as_time(NOW)) is None, "nothing was looked at yet"
    shown.judge(shown.issues(as_time(NOW)))
    found = shown.find(as_time(NOW))
    assert (found if found is None else set(found)) == keys
    for key in found or ():
        assert shown.finds(key)
        assert key[0] in load().conditions


def test_new_dead_letters_are_a_fault_for_a_minute():
    stream = StreamTotals()
    stream.account.consumed = stream.account.dead_lettered = 5
    readers = SimpleNamespace(streams={"alerts": stream})
    bus = BusHealth(connected=True)
    faults = Overview(load(), bus, WorkerAccounts(), readers, [])
    faults.judge(faults.issues(1_000_000_000))
    assert faults.find(1_000_000_000) == {}  # those of before are no news
    stream.account.consumed = stream.account.dead_lettered = 6
    assert set(faults.find(1_010_000_000)) == {("deadLetters", "sdp-facade/alerts")}
    assert set(faults.find(1_069_000_000)) == {("deadLetters", "sdp-facade/alerts")}
    stream.account.consumed = stream.account.dead_lettered = 46
    (fault,) = faults.find(1_069_500_000).values()
    assert fault.values == {"new records": 41}, "of this time, not of all times: by their growth it asks anew"
    assert faults.find(1_130_000_000) == {}


def test_new_dead_letters_end_though_the_clock_is_set_back():
    stream = StreamTotals()
    faults = Overview(load(), BusHealth(connected=True), WorkerAccounts(), SimpleNamespace(streams={"a": stream}), [])
    faults.issues(9_000_000_000)
    stream.account.consumed = stream.account.dead_lettered = 1
    assert {*faults.find(9_000_000_000)} == {*faults.find(1_000_000_000)} == {key := ("deadLetters", "sdp-facade/a")}
    assert not faults.judges(key)
    assert faults.find(1_070_000_000) == {}
    assert faults.judges(key), "also an alarm of an earlier run"


def test_a_later_beginning_is_a_new_occurrence_and_an_earlier_one_none(bench):
    bench.found = {KEY: Fault("t1 is lost", "ALARM", 1000)}
    assert not bench.own.has_reported(KEY, 1000)
    assert bench.look() == [("ACTIVE", "ALARM")]
    assert bench.own.has_reported(KEY, 1000)
    assert not bench.own.has_reported(KEY, 1001)
    bench.found = {KEY: Fault("t2 is lost", "ALARM", 2000)}
    bench.look()
    bench.found = {KEY: Fault("t1 is lost", "ALARM", 1000)}
    bench.look()
    assert [(one.raised_at, one.text) for one in bench.alerts()] == [(1000, "t1 is lost"), (2000, "t2 is lost")]
    bench.found = {}
    bench.look()
    assert bench.alerts()[-1].raised_at == 2000
    assert bench.own.has_reported(KEY, 2000)


def test_what_was_told_is_known_after_a_restart_though_it_has_cleared(bench):
    alarm = Alarm(condition=KEY[0], source=KEY[1], state="RTNUN", through=9, source_raised_at=1000)
    bench.start(alarm)
    assert bench.own.has_reported(KEY, 1000)
    bench.before.fold(state_record(KEY, None), count=True)
    assert not bench.own.has_reported(KEY, 1000)


def test_many_texts_that_change_take_turns(bench):
    sources = [f"ingest/{node:04d}" for node in range(40)]
    for second in range(40):
        bench.found = {("streamSilent", source): Fault(f"for {second} s", "ALARM") for source in sources}
        bench.look(1)
    news = bench.alerts()[len(sources) :]
    assert len(news) <= 5 * 40
    assert {one.source for one in news} == set(sources)
