"""The account of the alerts' fault run finds what is wrong, each kind made on purpose; its scenario can be repeated,
and its states are those of the ledger, which was written apart from it."""

import pytest

from sdp_facade_lab.fault_runs.alerts import (
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
        ({"shown": []}, "... in another state", "expected UNACK, got NORM"),
    ],
)
def test_what_is_wrong_is_counted_and_named(change, row, says):
    made = account(found(**change))
    assert dict(made.rows)[row] == 1
    assert any(says in text for text in made.wrong), made.wrong
