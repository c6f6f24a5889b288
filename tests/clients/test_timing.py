"""Events by arrival: one that was held up is no fault of the device, and none that is too fast gets through."""

import random

import pytest

from sdp_facade_clients.timing import LASTING, closest

SHORTEST = 0.5


def arrivals(gap: float, count: int, **held_up: float) -> list[float]:
    """Return when events come that leave so far apart; some come later, and none before the one ahead of it."""
    times: list[float] = []
    for number in range(count):
        time = number * gap + held_up.get(f"number_{number}", 0.0)
        times.append(max([time, *times[-1:]]))
    return times


def too_close(times: list[float], patience: float = 1.0) -> bool:
    found = closest(times, SHORTEST)
    return found is not None and found.is_too_close(patience)


@pytest.mark.parametrize("factor", [1.25, 1.5, 2.0, 3.0, 100.0])
def test_events_that_leave_too_fast_are_found_whatever_they_meet_on_their_way(factor: float) -> None:
    """Six gaps are enough for a quarter too many; the fewer, the faster."""
    assert too_close(arrivals(SHORTEST / factor, LASTING + 1))
    chance = random.Random(2)
    for _ in range(200):
        late = {f"number_{number}": chance.uniform(0.0, 0.1) for number in range(1, 30)}
        assert too_close(arrivals(SHORTEST / factor, 30, **late))
