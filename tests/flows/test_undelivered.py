"""A command is UNDELIVERED only if the brokers' own word proves that its record is not on the log."""

from collections.abc import Mapping
from typing import Any

import pytest

from facade.flows.commands.composition import CommandsEnd
from facade.flows.commands.messages import ACKS, COMMANDS
from facade.kernel.bus.offsets import Extent
from facade.kernel.clock import ManualClock
from facade.kernel.errors import BusError, CommandRefused, OutcomeUnknown
from tests.support.commanding import SUBARRAY, Bench, Server

ARGUMENT = {
    "interface": "https://schema.skao.int/ska-sdp-configure/0.4",
    "scan_type": "science",
    "transaction_id": "txn-test-20270115-0001",
}
S = 1_000_000


class Site(Bench):
    """One device server, the questions that it asks, and a fetch that may hang."""

    def __init__(self) -> None:
        super().__init__()
        self.report(State="ON", obsState="IDLE")
        self.now: Server = self.server()
        self.now.cycle()
        end = self.now.service.find(CommandsEnd)
        assert end is not None
        self.end, self._extents = end, end._extents
        end._extents = self._ask
        self.questions: list[float] = []
        self.is_silent = False
        """Whether the brokers do not answer the questions."""

    def _ask(self, topics: list[str]) -> Mapping[str, Extent]:
        self.questions.append(self.clock.monotonic())
        if self.is_silent:
            raise BusError("no answer")
        return self._extents(topics)

    def hang(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the leaders of the topics of commands stand still for this server: it fetches nothing more of them."""
        reader = self.now.reader
        consumer = getattr(reader, "_by_topic", {COMMANDS: reader})[COMMANDS]._consumer
        fetch = consumer._fetch

        def fetch_others(wanted: int) -> None:
            hidden = {place: consumer._at.pop(place) for place in [*consumer._at] if place[0] in (COMMANDS, ACKS)}
            fetch(wanted)
            consumer._at |= hidden

        monkeypatch.setattr(consumer, "_fetch", fetch_others)

    def give(self) -> str:
        return self.now.give("Configure", ARGUMENT)

    def wait(self, seconds: float) -> None:
        for _ in range(round(2 * seconds)):
            self.clock.sleep(0.5)
            self.now.cycle(1)

    @property
    def status(self) -> str:
        (one,) = self.now.tracker.pending(SUBARRAY) or self.now.tracker.finished(SUBARRAY, 1)
        return str(one.status)


@pytest.fixture
def site() -> Site:
    return Site()


def test_a_record_beyond_what_a_hanging_fetch_has_read_is_not_undelivered(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers were told of five executed commands that they had never reached the bus."""
    with monkeypatch.context() as hanging:
        site.hang(hanging)
        site.now.bus.mute = True
        with pytest.raises(OutcomeUnknown):
            site.give()
        site.now.bus.mute = False
        (command,) = site.commands()
        site.ack(command.id, "COMPLETED")
        site.wait(20)
        assert site.now.service.is_at_end(COMMANDS, ACKS), "by the last fetch"
        assert (site.status, len(site.acks())) == ("NEW", 1)
        assert site.questions
    site.wait(2)
    assert site.status == "COMPLETED"
    assert [one.status for one in site.acks()] == ["COMPLETED"]
    assert site.give() == command.id


def test_a_record_that_is_nowhere_is_undelivered_after_the_answer(site: Site) -> None:
    site.now.bus.deaf = True
    with pytest.raises(OutcomeUnknown):
        site.give()
    site.now.bus.deaf = False
    site.wait(5.5)
    assert site.questions == [], "as the command may still begin"
    for _ in range(4):
        site.clock.sleep(0.5)
        site.now.service.event_loop.cycle(site.now.reader)
    assert (site.status, site.acks()) == ("NEW", []), "before the answer"
    site.wait(2)
    assert site.status == "UNDELIVERED"
    assert [one.text for one in site.acks()] == ["its record never appeared on the bus"]
    assert len(site.questions) == 1
    site.wait(20)
    assert len(site.questions) == 1, "as nothing is overdue any more"
    with pytest.raises(CommandRefused, match="never reached the bus"):
        site.give()


def test_brokers_that_do_not_answer_are_asked_again_after_a_pause(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.now.bus.deaf = site.is_silent = True
    with pytest.raises(OutcomeUnknown):
        site.give()
    site.now.bus.deaf = False

    class Stop:
        """Lets the event loop work while the thread of the questions pauses."""

        until = site.clock.monotonic() + 20

        def wait(self, pause: float) -> bool:
            until = site.clock.monotonic() + pause
            while site.clock.monotonic() < until - 1e-6:
                site.clock.sleep(0.1)
                site.now.service.event_loop.cycle(site.now.reader)
            return site.clock.monotonic() > self.until

    stop: Any = Stop()
    site.end.run(stop)
    assert (site.status, site.acks()) == ("NEW", [])
    assert 10 <= len(site.questions) <= 15
    assert "no answer" in caplog.text
    site.is_silent, stop.until = False, site.clock.monotonic() + 3
    site.end.run(stop)
    assert site.status == "UNDELIVERED"


def test_an_end_counts_from_the_time_of_its_question_and_for_its_own_log() -> None:
    clock, read = ManualClock(100.0), [True]
    answer = Extent("id", {0: (0, 7)})

    def extents(topics: list[str]) -> Mapping[str, Extent]:
        clock.sleep(5.0)
        return dict.fromkeys(topics, answer)

    end = CommandsEnd(extents, lambda topic, now: (topic, now) == (COMMANDS, answer) and read[0], clock)
    assert not end.has_read(99 * S)
    end.step()
    assert end.has_read(99 * S)
    assert not end.has_read(100 * S), "as it was asked for at that time, and not after it"
    assert not end.has_read(103 * S), "though its answer came after it"
    read[0] = False
    assert not end.has_read(99 * S)


def test_an_end_that_was_asked_for_while_the_clock_was_ahead_proves_nothing_of_later_times() -> None:
    clock = SteppedClock(4700.0)
    answer = Extent("id", {0: (0, 7)})
    end = CommandsEnd(lambda topics: dict.fromkeys(topics, answer), lambda topic, now: True, clock)
    end.has_read(1)
    end.step()
    clock.step -= 3600.0
    clock.sleep(1.0)
    assert end.has_read(1099 * S), "as it was asked for at 1100 s"
    assert not end.has_read(1101 * S)
    clock.sleep(7200.0)
    assert not end.has_read(4000 * S)


class SteppedClock(ManualClock):
    """A clock that somebody sets."""

    step = 0.0

    def now(self) -> float:
        return super().now() + self.step


def test_a_topic_is_read_to_an_end_of_each_partition_of_the_same_log(site: Site) -> None:
    has_read_to, (now,) = site.now.service.has_read_to, site._extents([COMMANDS]).values()
    assert has_read_to(COMMANDS, now)
    first, after = now.ranges[0]
    assert not has_read_to(COMMANDS, Extent(now.id, {**now.ranges, 0: (first, after + 1)}))
    assert not has_read_to(COMMANDS, Extent(now.id, {**now.ranges, 99: (0, 1)}))
    assert not has_read_to(COMMANDS, Extent("another", now.ranges))
