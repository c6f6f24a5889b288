"""How long records wait, by what a reader says of its position and of the end of the log."""

import pytest

from facade.sdp.stream_accounts import Backlog


@pytest.mark.parametrize(
    ("notes", "now", "records", "seconds"),
    [
        ([], 5.0, 0, 0.0),
        ([(0.0, 10, 10)], 5.0, 0, 0.0),
        ([(float(s), 10 * s, 10 * s) for s in range(60)], 59.5, 0, 0.0),  # it keeps up
        ([(0.0, 10, 10), (600.0, 10, 10), (601.0, 10, 15)], 601.5, 5, 1.5),  # it stood still as long as nothing came
        ([(float(s), 0, 10 * s) for s in range(61)], 60.0, 600, 60.0),  # it is stuck
        ([(float(s), 5 * s, 10 * s) for s in range(61)], 60.0, 300, 30.0),  # it takes half of what comes
        ([(100.0, 0, 1000), (101.0, 500, 1000), (102.0, 600, 1000)], 102.0, 400, 2.0),  # nobody knows since when
        ([(0.0, 0, 100), (1.0, 0, 200), (2.0, 100, 200), (3.0, 200, 200)], 9.0, 0, 0.0),  # it has caught up
        ([(0.0, 0, 100), (50.0, 0, 5)], 51.0, 5, 1.0),  # the topic was made again
    ],
)
def test_the_first_record_that_waits_has_done_so_since_the_log_ended_before_it(notes, now, records, seconds):
    backlog = Backlog()
    for at, position, end in notes:
        backlog.note(round(at * 1e6), position, end)
    assert (backlog.records, backlog.seconds(round(now * 1e6))) == (records, pytest.approx(seconds, abs=1.0))


def test_a_backlog_of_days_costs_little_and_is_told_to_a_part_of_it():
    backlog = Backlog()
    for second in range(20_000):
        backlog.note(second * 1_000_000, second // 2, second)
    assert len(backlog._ends) <= 3600
    assert backlog.seconds(20_000_000_000) == pytest.approx(10_000.0, rel=0.01)
