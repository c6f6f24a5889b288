"""Delays of the bench: by which event a notification counts as shown."""

from typing import NamedTuple

import numpy as np
import pytest

from sdp_facade_lab.bench.delays import shown_after
from sdp_facade_lab.bench.listening import HeardEvent

BEGIN = 1_795_276_800
"""A whole minute [Unix s]."""
NEVER = np.inf


class Case(NamedTuple):
    sent: list[float]
    """Own times of notifications after `BEGIN` [s]."""
    events: list[tuple[float, float]]
    """Newest data time and arrival of each event after `BEGIN` [s]."""
    window: float
    expected: list[float]
    """Delays [s]."""


CASES = {
    "nothing was sent": Case([], [(0.5, 1.0)], 1.0, []),
    "no event came": Case([0.1], [], 1.0, [NEVER]),
    "the event of its window": Case([0.0, 0.4, 0.9], [(0.9, 1.25)], 1.0, [1.25, 0.85, 0.35]),
    "each its own window": Case([0.9, 1.0], [(0.9, 1.25), (1.0, 2.25)], 1.0, [0.35, 1.25]),
    "an event that does not hold it yet": Case([0.5, 0.9], [(0.5, 1.25), (0.9, 1.75)], 1.0, [0.75, 0.85]),
    "a window that no event has shown": Case([0.5, 1.5], [(1.5, 2.25)], 1.0, [NEVER, 0.75]),
    "no event has the end of its window": Case([0.5, 0.9], [(0.5, 1.25), (1.5, 2.25)], 1.0, [0.75, NEVER]),
    "an event of an older window that is corrected": Case(
        [0.5, 1.5], [(0.5, 1.25), (1.5, 2.25), (0.7, 2.5)], 1.0, [0.75, 0.75]
    ),
    "events in another order": Case([0.5, 1.5], [(1.5, 2.25), (0.5, 1.25)], 1.0, [0.75, 0.75]),
    "a value that replaced it": Case([0.5, 0.9], [(0.9, 1.0), (5.0, 5.5)], 0.0, [0.5, 0.1]),
    "a total": Case([0.5, 1.5, 9.0], [(0.5, 0.75), (1.5, 1.75)], 0.0, [0.25, 0.25, NEVER]),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_notification_is_shown_by_the_first_event_that_holds_it(case: Case) -> None:
    sent = np.array([round((BEGIN + one) * 1e6) for one in case.sent], np.int64)
    events = [HeardEvent("device", "attribute", BEGIN + time, BEGIN + received) for time, received in case.events]
    assert shown_after(sent, events, case.window).tolist() == pytest.approx(case.expected, abs=1e-6)


def test_an_event_at_the_very_time_of_a_notification_holds_it() -> None:
    """Times of events are floating-point numbers, which Tango cuts to microseconds."""
    sent = BEGIN * 1_000_000 + np.arange(1_000_000, step=997, dtype=np.int64)
    for time in sent[::50].tolist():
        for shown in (time, time - 1):
            (delay,) = shown_after(np.array([time]), [HeardEvent("d", "a", shown / 1e6, BEGIN + 2.0)], 1.0)
            assert delay == pytest.approx(BEGIN + 2.0 - time / 1e6)
