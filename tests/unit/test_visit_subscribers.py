"""What the bench says of a visit's subscribers: all have theirs, each once, or it is not reached."""

import pytest

from sdp_facade_lab.bench.visit import EACH, SUBSCRIBERS, Subscribed, judge


def found(**changed) -> list[Subscribed]:
    """Return a hundred subscribers; the last of them got one alert after 9 s, which was on the bus for 2 s."""
    alerts = [(number, 101.0, 101.5) for number in range(EACH - 1)] + [(EACH, 107.0, 109.0)]
    right = {"source": "lsst/detector-000", "alerts": alerts, "place": 10_000, "by_page": 3, "lost": []}
    return [Subscribed(**right)] * (SUBSCRIBERS - 1) + [Subscribed(**{**right, **changed})]


def test_the_last_subscriber_counts():
    whole, until, behind, by_page = judge(found(), first=100.0)
    assert (whole.reached, whole.found) == (True, "100, 0 losses told")
    assert (until.found, behind.found, by_page.found) == ("9.0 s", "2.0 s", "300")


@pytest.mark.parametrize(
    "changed",
    [{"alerts": []}, {"alerts": [(1, 1.0, 1.0)] * EACH}, {"lost": ["4 to 500"]}],
    ids=["nothing", "one alert again and again", "a loss"],
)
def test_a_subscriber_without_its_alerts_is_not_passed_over(changed):
    assert judge(found(**changed), first=100.0)[0].reached is False
