"""The account of the alerts' fault run finds what is wrong, each kind made on purpose; its scenario can be repeated,
and its states are those of the ledger, which was written apart from it."""

import pytest

from proving.fault_runs.alerts import (
    AlarmStanding,
    FollowerReport,
    FoundAlerts,
    account,
)

CLIENT = FollowerReport(
    by_event=3, by_page=1, again=2, overtaken=1, overflowed=0, unusable=0, renewed=1, silence=0.5, lost=[]
)
KEY = ("receiveOverrun", "source/00")
STANDING = AlarmStanding(state="UNACK", severity="ALARM", text="late", occurrence=4, raised_at=1)
SENT = [("a", b"1"), ("b", b"2"), ("a", b"3"), ("b", b"4")]
SHOWN = {"condition": KEY[0], "source": KEY[1], "state": "UNACK", "severity": "ALARM", "text": "late", "occurrence": 4}


def found(**changes) -> FoundAlerts:
    fields = {
        "sent": SENT,
        "received": [(number, one) for number, (_, one) in enumerate(SENT, 1)],
        "client": CLIENT,
        "wanted": {KEY: STANDING, ("storageLow", "b"): AlarmStanding()},
        "shown": [SHOWN],
    }
    return FoundAlerts(**fields | changes)


@pytest.mark.parametrize(
    ("change", "row", "says"),
    [
        ({"received": [(1, b"1"), (2, b"2"), (3, b"3")]}, "lost", "was sent and never received: number 4"),
        (
            {"received": [(1, b"1"), (2, b"2"), (2, b"2"), (3, b"3"), (4, b"4")]},
            "given to the client twice",
            "was given to the client twice: number 2",
        ),
        (
            {"received": [(2, b"2"), (3, b"3"), (1, b"1"), (4, b"4")]},
            "out of order at the client, for their source",
            "came to the client after a later one of its source: number 1",
        ),
        (
            {"received": [*((number, one) for number, (_, one) in enumerate(SENT, 1)), (5, b"x")]},
            "received, and never sent",
            "was received and never sent: number 5",
        ),
        ({"shown": []}, "... in another state", "expected UNACK, got NORM"),
        ({"shown": [SHOWN | {"state": "ACKED"}]}, "... in another state", "got ('ACKED', "),
        ({"shown": [SHOWN | {"occurrence": 3}]}, "... in another state", "'ALARM', 3, "),
        ({"shown": [SHOWN, SHOWN | {"source": "x"}]}, "... in another state", "nobody raised it"),
        ({"wanted": {KEY: AlarmStanding()}}, "... in another state", "expected NORM, got UNACK"),
    ],
)
def test_what_is_wrong_is_counted_and_named(change, row, says):
    made = account(found(**change))
    assert dict(made.rows)[row] == 1
    assert any(says in text for text in made.wrong), made.wrong
