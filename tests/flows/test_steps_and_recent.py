"""Threads of steps outlive mistakes; what is remembered is bounded; JSON has a form for each number."""

import json
import logging
import math
import threading
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from facade.kernel.bus.port import Record
from facade.kernel.clock import SECOND, as_time
from facade.kernel.errors import BusError
from facade.kernel.numbers import json_value
from facade.kernel.recent import Bounded, MeanRate
from facade.kernel.runtime.steps import StepThread, run_steps
from facade.sdp.bounded_writer import MOST_UNDER_WAY, BoundedWriter


class Stop(threading.Event):
    """Counts the pauses instead of waiting."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.pauses: list[float | None] = []
        self._most = most

    def wait(self, timeout: float | None = None) -> bool:
        self.pauses.append(timeout)
        return len(self.pauses) > self._most


def test_a_mistake_does_not_end_the_steps(caplog: pytest.LogCaptureFixture) -> None:
    away = BusError("no broker")
    answers: list[Any] = [None, True, KeyError("a bug"), away, away, None, away]
    mistakes: list[Exception] = []

    def step() -> bool | None:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    stop = Stop(7)
    with caplog.at_level(logging.WARNING):
        run_steps(step, stop, "the work", each=0.5, on_mistake=mistakes.append)
    assert answers == []
    assert stop.pauses == [0.5, 0.5, 0.0, 1.0, 1.0, 1.0, 0.5, 1.0]
    assert [type(one) for one in mistakes] == [KeyError], "a bus that is away is no mistake"
    waits = "the work waits for the bus: no broker"
    assert [one.getMessage() for one in caplog.records] == ["the work failed", waits, waits], "once for each outage"


def test_a_thread_takes_steps_until_it_is_ended() -> None:
    stepped = threading.Event()
    thread = StepThread(stepped.set, "steps")
    thread.start()
    assert stepped.wait(30.0)
    thread.end()
    StepThread(stepped.set, "never started").end()


def test_the_oldest_entry_is_dropped_and_one_that_is_set_is_the_newest() -> None:
    known: Bounded[str, int] = Bounded(2)
    known.update({"a": 1, "b": 2})
    known["a"] = 3
    known["c"] = 4
    assert list(known.items()) == [("a", 3), ("c", 4)]
    assert (known.setdefault("a", 9), known.setdefault("d", 5)) == (3, 5)
    assert list(known) == ["c", "d"], "an entry that is only asked for keeps its place"


def test_a_rate_is_the_mean_of_the_last_seconds() -> None:
    rate = MeanRate(10 * SECOND)
    assert [rate.note(2 * second, as_time(second)) for second in range(3)] == [0.0, 2.0, 2.0]
    assert rate.note(4, as_time(12.0)) == 0.0
    assert rate.note(9, as_time(1.0)) == 0.0, "the clock was set back"
    assert rate.note(10, as_time(2.0)) == 1.0


def test_a_rate_remembers_no_more_while_the_clock_of_a_replay_stands_still() -> None:
    rate = MeanRate(10 * SECOND)
    rate.note(0, as_time(1.0))
    assert {rate.note(count, as_time(2.0)) for count in range(1000)} == {float(count) for count in range(1000)}
    assert len(rate._counts) == 2
    assert rate.note(2000, as_time(3.0)) == 1000.0


class Writer:
    def __init__(self) -> None:
        self.sent: list[Record] = []
        self.results = self.failed = 0

    def send(self, record: Record) -> None:
        self.sent.append(record)

    def mark(self) -> int:
        return len(self.sent)

    def settled(self, mark: int) -> bool:
        return self.results >= mark

    def failures(self, topic: str) -> int:
        return self.failed


def test_records_without_a_result_are_counted() -> None:
    bus: Any = Writer()
    writer, record = BoundedWriter(bus, "t"), Record(topic="t", key=b"", value=b"")
    writer.send(record, record)
    writer.settle()
    writer.send(record)
    writer.settle()
    assert (writer.waiting, writer.room, writer.records, len(bus.sent)) == (2, MOST_UNDER_WAY - 2, 2, 3)
    bus.results = 2
    writer.settle()
    assert writer.waiting == 1
    bus.results, bus.failed = 3, 1
    writer.settle()
    assert (writer.waiting, writer.room, writer.failed) == (0, MOST_UNDER_WAY, 1), "a failure is a result"


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (0.5, 0.5),
        (math.nan, "NaN"),
        (math.inf, "Infinity"),
        (-math.inf, "-Infinity"),
        (np.float32("-inf"), "-Infinity"),
        (np.int16(7), 7),
        (True, True),
        ("text", "text"),
        (((1.0, math.nan), (2, 3)), [[1.0, "NaN"], [2, 3]]),
        (np.array([[1.0, np.inf]]), [[1.0, "Infinity"]]),
    ],
    ids=str,
)
def test_each_number_has_a_form_in_json(value: Any, wanted: Any) -> None:
    assert json.dumps(json_value(value), allow_nan=False) == json.dumps(wanted)


@pytest.mark.needs("sdp_facade_clients")
def test_the_page_follows_the_devices_on_after_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    from sdp_facade_clients.web.following import Following

    following = Following.__new__(Following)
    looks: list[Any] = [KeyError("a mistake of ours"), None]

    def step() -> None:
        if found := looks.pop(0):
            raise found

    for name, part in {"step": step, "_stop": Stop(2), "recorder": MagicMock(), "_pulse": None}.items():
        monkeypatch.setattr(following, name, part, raising=False)
    following._run()
    assert looks == []
