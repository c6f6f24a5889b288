"""How many workers are wanted, by how busy they are; no figure that wavers makes it flap."""

import random

import pytest

from facade.sdp.demand import Wanted, Work, decide
from facade.sdp.messages import StreamAccount

S = 1_000_000
NOW = 1_000 * S


@pytest.mark.parametrize(
    ("before", "need", "most", "wanted"),
    [
        pytest.param(Wanted(1), 0.0, 4, Wanted(1), id="one stays, also with nothing to do"),
        pytest.param(Wanted(1), 0.85, 4, Wanted(1), id="busy, but no busier than may be"),
        pytest.param(Wanted(1), 0.86, 4, Wanted(2), id="too busy"),
        pytest.param(Wanted(1), 2.5, 4, Wanted(4), id="several more at once"),
        pytest.param(Wanted(1), 9.0, 4, Wanted(4), id="no more than there are partitions"),
        pytest.param(Wanted(3), 1.3, 4, Wanted(3), id="two would be too busy"),
        pytest.param(Wanted(3), 1.2, 4, Wanted(3, NOW), id="two would be enough, from now on"),
        pytest.param(Wanted(3, NOW - 59 * S), 1.2, 4, Wanted(3, NOW - 59 * S), id="not for long enough yet"),
        pytest.param(Wanted(3, NOW - 60 * S), 1.2, 4, Wanted(2, NOW), id="for long enough: one fewer"),
        pytest.param(Wanted(3, NOW - 60 * S), 0.1, 4, Wanted(2, NOW), id="one by one"),
        pytest.param(Wanted(3, NOW - 59 * S), 1.3, 4, Wanted(3), id="not without a break"),
        pytest.param(Wanted(3, NOW - 60 * S), None, 4, Wanted(3), id="nothing is known: as before"),
        pytest.param(Wanted(3), 2.0, 2, Wanted(2), id="more workers than partitions"),
    ],
)
def test_more_are_wanted_at_once_and_fewer_after_a_while(
    before: Wanted, need: float | None, most: int, wanted: Wanted
) -> None:
    assert decide(before, need, most, NOW) == wanted


@pytest.mark.parametrize("need", [0.1 * one for one in range(1, 60)])
def test_a_need_that_wavers_by_a_tenth_makes_nothing_flap(need: float) -> None:
    """From too few and from too many it settles: it may have gone up too far, and never goes up again."""
    dice = random.Random(f"{need}")
    for start in (1, 9):
        found, moves = Wanted(start), list[int]()
        for second in range(3600):
            before, found = found, decide(found, need * dice.uniform(0.95, 1.05), 9, NOW + second * S)
            moves.append(found.workers - before.workers)
        steps = [one for one in moves if one]
        assert steps == sorted(steps, reverse=True)
        assert found.workers >= need * 0.95


def entry(second: int, partition: int, *, taken: int, end: int, busy: float) -> StreamAccount:
    """Return what a worker says of one second."""
    return StreamAccount(
        worker="0", stream="s", partition=partition, time=NOW + second * S, offset_from=0, offset_to=taken,
        high_watermark=end, consumed=taken, used=taken, late=0, suppressed=0, dead_lettered=0, in_flight=0, reasons={},
        busy=round(busy * 1e6),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("come", "taken", "busy", "waiting", "need"),
    [
        pytest.param(100, 100, 0.25, 0, 0.5, id="two partitions, each a quarter"),
        pytest.param(300, 100, 0.5, 0, 3.0, id="three times as many come as are taken"),
        pytest.param(100, 100, 0.5, 3000, 1.5, id="what waits is to be taken within 30 s"),
        pytest.param(0, 100, 0.5, 6000, 1.0, id="nothing comes any more"),
        pytest.param(100, 0, 0.0, 500, None, id="nobody takes anything"),
        pytest.param(100, 100, 0.0, 0, None, id="workers of an older release do not say"),
        pytest.param(0, 0, 0.0, 0, 0.0, id="nothing comes, nothing waits"),
    ],
)
def test_the_need_is_what_comes_and_waits_times_the_work_for_each(
    come: int, taken: int, busy: float, waiting: int, need: float | None
) -> None:
    work = Work()
    for second in range(11):
        for partition in (0, 1):
            work.note(entry(second, partition, taken=taken, end=1000 + second * come, busy=busy))
    assert work.need(NOW + 11 * S, waiting) == (need if need is None else pytest.approx(need))
