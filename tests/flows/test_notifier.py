"""Alarms that nobody acknowledges are told elsewhere, once, whatever is killed in between."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from facade.flows.alerts.messages import NOTIFICATIONS, STATES, Alarm, AlertNotification, state_record
from facade.flows.alerts.notifier import FAILED, Notifier
from facade.flows.alerts.notify_rules import Receiver, Rule, Rules
from facade.flows.alerts.receivers import message_id
from facade.flows.alerts.suppression import suppression_of
from facade.kernel.bus.port import Fenced, Record
from facade.kernel.clock import ManualClock
from facade.kernel.icd.load import load
from tests.support.heaps import BASE_US
from tests.support.simulated_bus import MemoryBroker, MemoryBus

SHIFT, PAGER = "shift", "pager"
RECEIVERS = {SHIFT: Receiver(mail="shift@example.org"), PAGER: Receiver(webhook="http://pager.example.org/")}
KEY = ("receiveOverrun", "receive/1")
NODE, RACK = ("streamSilent", "ingest/0007"), ("rackSilent", "ingest/rack-00")
SUPPRESSION = suppression_of(load(), 50)


def rules(**more: Any) -> Rules:
    return Rules(receivers=RECEIVERS, rules=[Rule(**{"to": [SHIFT], "after": "1m", **more})])


class Killed(Exception):
    """The process is killed at this moment."""


class Site:
    """A broker, receivers, and one life of the process after the other."""

    def __init__(self, of: Rules | None = None) -> None:
        self.clock = ManualClock(BASE_US / 1e6)
        self.broker = MemoryBroker(self.clock)
        self.rules = of or rules()
        self.sent: list[tuple[str, str, str, int]] = []
        """What the receivers have taken: receiver, id, phase, number."""
        self.about: list[tuple[str, str]] = []
        """Condition and source of each message that was taken."""
        self.answers: dict[str, str | None] = {}
        self.cut: Counter[str] = Counter()
        self.told: list[tuple[str, str]] = []
        self.fuse = -1
        """Effects before the process is killed; below 0: it is not."""
        self._lives = 0
        self.now = self.start()

    def start(self) -> Notifier:
        self._lives += 1
        self.bus = MemoryBus(self.broker)
        send = self.bus.send

        def write(record: Record) -> None:
            self.effect()
            send(record)
            self.effect()

        self.bus.send = write  # type: ignore[method-assign]
        alerts: Any = SimpleNamespace(
            raise_alert=lambda condition, severity, text: self.told.append((condition, text)),
            clear=lambda condition, text: self.told.append((condition, "")),
        )
        origin = f"life-{self._lives}"
        self.now = Notifier(
            self.bus, self.rules, self.post, alerts, suppression=SUPPRESSION, clock=self.clock, origin=origin
        )
        return self.now

    def effect(self) -> None:
        if self.fuse == 0:
            self.fuse = -1
            raise Killed
        self.fuse -= self.fuse > 0

    def post(self, receiver: str, note: AlertNotification) -> Any:
        self.effect()
        error = self.answers.get(receiver, "")
        if error == "":
            self.sent.append((receiver, message_id("", note), note.phase, note.number))
            self.about.append((note.condition, note.source))
        self.effect()
        return SimpleNamespace(error=error, cut=lambda: self.cut.update([receiver]))

    def wait(self, seconds: float) -> None:
        for _ in range(round(seconds)):
            self.now.step()
            self.clock.sleep(1.0)

    def alarm(self, state: str = "UNACK", key: tuple[str, str] = KEY, **more: Any) -> None:
        usual = {"raised": 1, "occurrence": 7, "through": 7, "severity": "ALARM", "text": "too fast"}
        self.broker.append(state_record(key, Alarm(condition=key[0], source=key[1], state=state, **{**usual, **more})))

    def phases(self) -> list[tuple[str, str, int]]:
        return [(receiver, phase, number) for receiver, _, phase, number in self.sent]

    def look(self) -> list[tuple[str, str, str]]:
        """Return what a dry run lists: receiver, source, and when the message is due."""
        bus = MemoryBus(self.broker)
        one = Notifier(bus, self.rules, self.post, None, suppression=SUPPRESSION, clock=self.clock)
        one.catch_up(1.0)
        return [(receiver, found.alarm.source, when) for receiver, found, when in one.preview()]

    def kept(self) -> set[bytes]:
        """Return the keys that compaction would keep on the topic."""
        newest = {one.key: one.value for one in self.broker.read(NOTIFICATIONS)}
        return {key for key, value in newest.items() if value is not None and key is not None}


@pytest.fixture
def site() -> Site:
    return Site()


def test_an_alarm_that_nobody_acknowledges_is_told_after_its_time_and_so_is_its_end(site: Site) -> None:
    site.alarm()
    site.wait(58)
    assert not site.sent
    site.wait(8)
    assert site.phases() == [(SHIFT, "SENDING", 1)]
    site.wait(600)
    assert len(site.sent) == 1
    site.alarm("ACKED", acknowledged_at=BASE_US, action="ACK", operator="ann", comment="seen")
    site.wait(5)
    assert site.phases() == [(SHIFT, "SENDING", 1), (SHIFT, "ENDING", 1)]
    ended = [one.value or b"" for one in site.broker.read(NOTIFICATIONS) if b'"ENDING"' in (one.value or b"")]
    assert b"ACK by ann: seen" in ended[0]
    assert site.kept() == {b"process"}


@pytest.mark.parametrize(
    "over",
    [
        {"state": "ACKED", "acknowledged_at": BASE_US},
        {"state": "NORM"},
        {"shelved_until": 2**52},
        {"out_of_service": True},
        {"annunciated": False},
        None,
    ],
)
def test_an_alarm_that_waits_for_nobody_is_not_told(site: Site, over: Any) -> None:
    site.alarm()
    site.wait(50)
    if over is None:
        site.broker.append(state_record(KEY, None))
    else:
        site.alarm(**over)
    site.wait(200)
    assert not site.sent
    assert site.kept() == {b"process"}


@pytest.mark.parametrize("over", [{"state": "NORM"}, {"shelved_until": 2**52}, None])
def test_an_alarm_that_another_one_explains_later_is_not_told_until_its_cause_is_over(site: Site, over: Any) -> None:
    site.alarm(key=NODE)
    site.wait(50)
    site.alarm(key=RACK)
    site.wait(200)
    assert site.about == [RACK]
    assert (SHIFT, NODE[1], f"when {'@'.join(RACK)} is over, if it still waits then") in site.look()
    if over is None:
        site.broker.append(state_record(RACK, None))
    else:
        site.alarm(key=RACK, **over)
    site.wait(20)
    assert Counter(site.about) == {RACK: 2, NODE: 1}


def test_repetitions_stop_while_another_alarm_explains_one_and_its_end_is_told() -> None:
    site = Site(rules(again="1m"))
    site.alarm(key=NODE)
    site.wait(70)
    site.alarm(key=RACK, state="ACKED", acknowledged_at=BASE_US)
    site.wait(600)
    assert site.phases() == [(SHIFT, "SENDING", 1)]
    assert site.look() == [(SHIFT, NODE[1], f"when {'@'.join(RACK)} is over, if it still waits then")]
    site.alarm(key=NODE, state="NORM")
    site.wait(5)
    assert site.phases() == [(SHIFT, "SENDING", 1), (SHIFT, "ENDING", 1)]


def test_it_waits_from_the_first_record_also_if_it_is_raised_again_and_again(site: Site) -> None:
    for number in range(1, 7):
        site.alarm(raised=number, occurrence=number)
        site.wait(10)
        site.start()
    site.wait(5)
    assert len(site.sent) == 1


def test_an_alarm_that_comes_back_after_it_was_acknowledged_is_told_anew(site: Site) -> None:
    site.alarm()
    site.wait(70)
    site.alarm("ACKED", acknowledged_at=BASE_US)
    site.alarm(acknowledged_at=BASE_US, raised=2, occurrence=9)
    site.wait(50)
    assert site.phases() == [(SHIFT, "SENDING", 1), (SHIFT, "ENDING", 1)]
    site.wait(30)
    assert site.phases()[2:] == [(SHIFT, "SENDING", 1)]
    assert len({id for _, id, *_ in site.sent}) == 3


@pytest.mark.parametrize(
    ("after", "change", "again"),
    [
        (10, {}, False),
        (3600, {}, False),
        (10, {"raised": 3, "occurrence": 9}, False),  # it was raised again, and nobody has acknowledged it
        (3600, {"raised": 3, "occurrence": 9}, True),  # it may have been forgotten in between: rather twice than never
        (10, {"acknowledged_at": BASE_US + 1, "raised": 2, "occurrence": 9}, True),
        (10, {"occurrence": 9}, True),  # forgotten, and raised once since
    ],
)
def test_after_a_restart_an_alarm_is_recognised(site: Site, after: float, change: Any, again: bool) -> None:
    site.alarm()
    site.wait(70)
    site.clock.sleep(after)
    site.alarm(**change)
    site.broker.remove(STATES, 0, 1)  # as compaction does
    site.start()
    site.wait(80)
    assert site.phases()[1:] == [(SHIFT, "ENDING", 1), (SHIFT, "SENDING", 1)] * again


def test_it_is_told_again_until_somebody_acknowledges_it_and_each_message_has_its_id() -> None:
    site = Site(rules(again="5m", ends=False))
    site.alarm()
    site.wait(700)
    assert [number for _, _, number in site.phases()] == [1, 2, 3]
    assert len({id for _, id, *_ in site.sent}) == 3
    site.alarm("ACKED", acknowledged_at=BASE_US)
    site.wait(700)
    assert len(site.sent) == 3


def _scenario(site: Site) -> None:
    """Two alarms for two receivers; one is acknowledged, the other one comes to rest."""
    keys = [KEY, ("streamSilent", "ingest/0001")]
    for key in keys:
        site.alarm(key=key)
    _live(site, 75)
    site.alarm("ACKED", acknowledged_at=BASE_US)
    site.broker.append(state_record(keys[1], None))
    _live(site, 30)


def _live(site: Site, seconds: float) -> None:
    for _ in range(round(seconds)):
        try:
            site.wait(1)
        except Killed:
            site.start()


def test_after_a_kill_between_any_two_effects_each_alarm_is_told_once_by_its_id() -> None:
    of = rules(to=[SHIFT, PAGER])
    calm = Site(of)
    _scenario(calm)
    wanted = {one[:3] for one in calm.sent}
    assert len(calm.sent) == len(wanted) == 8
    kill, repeated = 0, 0
    while True:
        site = Site(of)
        site.fuse = kill
        _scenario(site)
        if site.fuse >= 0:
            break
        assert {one[:3] for one in site.sent} == wanted, f"killed at effect {kill}"
        more = len(site.sent) - len(wanted)
        assert more <= 2, (
            f"killed at effect {kill}: {more} messages were repeated, and each receiver has one on its way"
        )
        repeated += more
        assert site.kept() == {b"process"}
        kill += 1
    assert kill > 50
    assert repeated >= 8, "each of them can be repeated: it has left, and is not noted yet"


def test_a_receiver_that_hangs_or_refuses_holds_up_nobody_and_is_an_alarm_on_the_page() -> None:
    site = Site(rules(to=[SHIFT, PAGER]))
    site.answers = {PAGER: None}
    for number in range(20):
        site.alarm(key=("receiveOverrun", f"receive/{number}"))
    site.wait(100)
    assert site.phases() == [(SHIFT, "SENDING", 1)] * 20
    assert site.cut[PAGER]
    site.wait(40)
    assert site.told[-1][0] == FAILED
    assert "pager: it has not answered for 3" in site.told[-1][1]
    assert "messages that wait: 20" in site.told[-1][1]
    site.start()  # the thread that hangs has ended with its process
    site.answers = {PAGER: "550 no such user"}
    site.wait(60)
    assert site.told[-1] == (FAILED, "pager: 550 no such user; messages that wait: 20")
    site.answers = {}
    site.wait(400)
    assert Counter(one[:2] for one in site.phases()) == {(SHIFT, "SENDING"): 20, (PAGER, "SENDING"): 20}
    assert site.told[-1] == (FAILED, "")


def test_one_message_that_is_refused_holds_up_no_other(site: Site) -> None:
    post = site.post

    def refuse(receiver: str, note: AlertNotification) -> Any:
        return SimpleNamespace(error="554 spam", cut=None) if note.source == "receive/0" else post(receiver, note)

    site.post = refuse  # type: ignore[method-assign]
    site.start()
    for number in range(4):
        site.alarm(key=("receiveOverrun", f"receive/{number}"))
    site.wait(200)
    assert len(site.sent) == 3
    assert "554 spam; messages that wait: 1" in site.told[-1][1]


def test_nothing_is_kept_of_what_nobody_took_in_a_day(site: Site) -> None:
    site.answers = {SHIFT: "554 spam"}
    site.alarm()
    site.wait(70)
    site.alarm("NORM")
    site.wait(10)
    site.clock.sleep(86400)
    site.wait(10)
    assert site.kept() == {b"process"}
    assert not site.now._tried


def test_of_two_processes_the_earlier_one_ends_and_tells_nothing(site: Site) -> None:
    site.alarm()
    site.wait(30)
    earlier = site.now
    site.start()
    site.wait(1)
    with pytest.raises(Fenced, match=r"another process tells of the alarms since .*: life-2"):
        earlier.step()
    assert not site.sent
    site.wait(40)
    assert len(site.sent) == 1


def test_a_broker_that_is_away_delays_and_repeats_nothing(site: Site) -> None:
    site.alarm()
    site.wait(55)
    site.bus.away = True
    site.wait(60)
    assert not site.sent, "it was not announced"
    site.bus.away = False
    site.wait(30)
    site.bus.refused = [NOTIFICATIONS]
    site.alarm("ACKED", acknowledged_at=BASE_US)
    site.wait(30)
    assert site.phases() == [(SHIFT, "SENDING", 1)]
    site.bus.refused = []
    site.wait(30)
    assert site.phases() == [(SHIFT, "SENDING", 1), (SHIFT, "ENDING", 1)]


def test_strange_records_end_no_process(site: Site) -> None:
    for topic in (STATES, NOTIFICATIONS):
        for key, value in ((None, None), (b"\xff/@", None), (b"k", b"junk"), (b"shift/a@b", None)):
            site.broker.append(Record(topic=topic, key=key, value=value))
    note = AlertNotification(phase="SENDING", receiver="gone", condition="a", source="b", time=1, origin="x")
    site.broker.append(Record(topic=NOTIFICATIONS, key=b"gone/a@b", value=msgspec.json.encode(note)))
    told = msgspec.structs.replace(note, phase="SENT", receiver=SHIFT, condition=KEY[0], source=KEY[1])
    site.broker.append(Record(topic=NOTIFICATIONS, key=b"another", value=msgspec.json.encode(told)))
    site.alarm()
    site.wait(70)
    assert site.phases() == [(SHIFT, "SENDING", 1)]
    assert site.kept() - {b"k", b"another"} == {b"process", b"shift/receiveOverrun@receive/1"}, (
        "who is in no rule is told nothing"
    )


def test_a_look_shows_what_would_be_told_and_changes_nothing(site: Site) -> None:
    site.alarm()
    site.wait(5)
    before = site.broker.read(NOTIFICATIONS)
    site.clock.sleep(100)
    look = site.look()
    assert look == [(SHIFT, "receive/1", "now, message 1")]
    assert (site.broker.read(NOTIFICATIONS), site.sent) == (before, [])
