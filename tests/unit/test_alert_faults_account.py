"""The account of the alerts' fault run finds what is wrong, each kind made on purpose; its scenario can be repeated,
and its states are those of the ledger, which was written apart from it."""

import msgspec
import pytest

from facade.flows.alerts.messages import alert_record
from facade.flows.alerts.operator_api import OperatorApi
from proving.fault_runs.alert_account import Found, account
from proving.fault_runs.alert_scenario import LATCHING, SOURCES, AlertScenario, Standing, digest
from proving.fault_runs.follower import FollowerReport, count_entries, packed, read_entries
from tests.support.alerting import Bench

CLIENT = FollowerReport(
    by_event=3, by_page=1, again=2, overtaken=1, overflowed=0, unusable=0, renewed=1, silence=0.5, lost=[]
)
KEY = ("receiveOverrun", "source/00")
STANDING = Standing(state="UNACK", severity="ALARM", text="late", occurrence=4, raised_at=1)
SENT = [("a", b"1"), ("b", b"2"), ("a", b"3"), ("b", b"4")]
SHOWN = {"condition": KEY[0], "source": KEY[1], "state": "UNACK", "severity": "ALARM", "text": "late", "occurrence": 4}


def found(**changes) -> Found:
    fields = {
        "sent": SENT,
        "received": [(number, one) for number, (_, one) in enumerate(SENT, 1)],
        "client": CLIENT,
        "wanted": {KEY: STANDING, ("storageLow", "b"): Standing()},
        "shown": [SHOWN],
    }
    return Found(**fields | changes)


def test_a_good_run_has_nothing_wrong():
    made = account(found())
    assert made.wrong == []
    rows = dict(made.rows)
    assert (rows["alerts and actions sent"], rows["received by the client"], rows["... by event"]) == (4, 4, 3)
    assert (rows["lost"], rows["alarms compared"], rows["... in another state"]) == (0, 2, 0)


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
        ({"wanted": {KEY: Standing()}}, "... in another state", "expected NORM, got UNACK"),
    ],
)
def test_what_is_wrong_is_counted_and_named(change, row, says):
    made = account(found(**change))
    assert dict(made.rows)[row] == 1
    assert any(says in text for text in made.wrong), made.wrong


def test_an_action_that_came_too_late_must_not_be_shown():
    assert account(found(refused={2}, received=[(1, b"1"), (3, b"3"), (4, b"4")])).wrong == []
    assert account(found(refused={2})).wrong == ["was received and never sent: number 2"]


def test_two_sources_may_be_told_in_another_order_but_not_with_other_numbers():
    swapped = [(1, b"2"), (2, b"1"), (3, b"3"), (4, b"4")]
    assert account(found(received=swapped)).wrong == [
        "has another number at the client than on the log: number 1",
        "has another number at the client than on the log: number 2",
    ]


def test_what_the_client_says_is_believed():
    client = msgspec.structs.replace(CLIENT, lost=["5 to 9"], unusable=1)
    assert account(found(client=client)).wrong == [
        "the client was told of a loss: 5 to 9",
        "1 events could not be read",
    ]


def test_of_a_thousand_losses_some_are_named():
    made = account(found(received=[], sent=[("a", b"%d" % number) for number in range(1000)]))
    assert dict(made.rows)["lost"] == 1000
    assert made.wrong[-1] == "... and 995 more"


def test_a_scenario_is_the_same_each_time_and_its_alarms_are_the_ledgers():
    bench = Bench()
    server = bench.server()
    scenario, again = AlertScenario(5, bench.now_us), AlertScenario(5, bench.now_us)
    told = [*scenario.records(3000)]
    assert 10 < len(scenario.refused) < 60
    assert told == [*again.records(1000), *again.records(2000)]
    assert {message.source for message in told} == set(SOURCES)
    assert {message.condition for message in told} == set(LATCHING)
    for message in told:
        bench.broker.append(alert_record(message))
    server.cycle(40)
    assert server.shows("alertSequence") in (2999, 3000)  # the last one may be refused
    assert server.shows("actionsRefused") == len(scenario.refused)
    states = {alarm.state for alarm in scenario.alarms.values()}
    assert states == {"NORM", "UNACK", "ACKED", "RTNUN", "LTUNK", "LTACK"}
    made = account(
        found(
            sent=[(message.source, digest(message)) for message in told],
            refused=scenario.refused,
            received=[(entry["sequence"], digest(entry.get("alert") or entry["action"])) for entry in server.events()],
            wanted=scenario.alarms,
            shown=msgspec.json.decode(server.service.find(OperatorApi).alarms()),
        )
    )
    assert made.wrong == []


def test_a_journal_is_read_as_it_was_written_and_a_line_under_way_is_left_for_later(tmp_path):
    path = tmp_path / "received.bin"
    assert (count_entries(path), read_entries(path)) == (0, [])
    path.write_bytes(packed(1, b"abcdefgh") + packed(2**40, b"12345678") + b"xyz")
    assert count_entries(path) == 2
    assert read_entries(path) == [(1, b"abcdefgh"), (2**40, b"12345678")]
