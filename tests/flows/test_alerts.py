"""Alerts on the simulation's brokers: numbered, sent one by one, folded to alarms, acted upon, back after a restart."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from facade.flows.alerts import flow as alerts_flow
from facade.flows.alerts.follower import Follower
from facade.flows.alerts.messages import Action, Alarm, Alert, alert_record, encode
from facade.flows.alerts.refusals import refusal
from facade.kernel.bus.port import Record
from facade.kernel.clock import utc_text
from facade.kernel.codec.decode import BatchDecoder
from facade.kernel.codec.json_schema import compile_message
from facade.kernel.errors import CommandRefused, OutcomeUnknown
from tests.support.alerting import Bench
from tests.support.commanding import ICD
from tests.support.examples import examples


@pytest.fixture
def bench():
    return Bench()


@pytest.fixture
def server(bench):
    return bench.server()


def test_each_alert_is_one_event_with_its_number_in_the_order_of_the_log(bench, server):
    for text in "abc":
        bench.alert(text=text)
    server.cycle()
    events = server.events()
    assert [(e["sequence"], e["previous"], e["alert"]["text"]) for e in events] == [
        (1, 0, "a"),
        (2, 1, "b"),
        (3, 2, "c"),
    ]
    assert server.shows("alertSequence") == 3
    assert server.shows("alertsTotal") == 3


def test_a_burst_leaves_as_fast_as_the_budget_allows_and_whole(bench, server):
    for _ in range(1500):
        bench.alert()
    sizes, before = [], 0
    while len(server.events()) < 1500:
        server.cycle(1, seconds=0.01)
        sizes.append(len(server.events()) - before)
        before += sizes[-1]
    assert max(sizes) <= 500  # below the high-water mark of a client
    assert [e["sequence"] for e in server.events()] == [*range(1, 1501)]


def test_an_alarm_goes_through_its_life(bench, server):
    raised = bench.alert()
    server.cycle()
    assert (server.state(), server.shows("receiveOverrun"), server.shows("State")) == ("UNACK", "UNACK", "ALARM")
    shown = json.loads(server.shows("activeAlerts")[0])
    assert (shown["text"], shown["raised_at_utc"]) == ("too fast", utc_text(round(shown["raised_at"] * 1e6)))
    server.acknowledge(comment="seen")
    assert server.state() == "ACKED"
    assert server.events()[-1]["action"]["operator"] == "ann"
    bench.alert(state="CLEARED", raised_at=raised.raised_at)
    server.cycle()
    assert (server.state(), server.shows("receiveOverrun"), server.shows("State")) == ("NORM", "NORM", "ON")
    assert server.shows("unacknowledgedCount") == 0


def test_an_acknowledged_alarm_shows_the_newest_text_and_stays_acknowledged(bench, server):
    raised = bench.alert("streamLagging", severity="WARNING", text="2 behind")
    server.cycle(3, seconds=3.0)
    server.acknowledge("streamLagging")
    server.cycle(1, seconds=1000.0)
    bench.alert("streamLagging", severity="WARNING", text="20,497 behind", raised_at=raised.raised_at)
    server.cycle()
    assert server.state("streamLagging") == "ACKED"
    assert json.loads(server.shows("activeAlerts")[0])["text"] == "20,497 behind"


def test_an_acknowledged_alarm_whose_value_explodes_comes_back_at_once(bench, server):
    """Ten times as many as at the acknowledgement, also over a restart; less is a new text."""
    states, raised = [], bench.alert("deadLetters", text="", values={"new records": 3})
    for count in (4, 20, 39, 40, 300, 400):
        server.cycle()
        if server.state("deadLetters") == "UNACK":
            server.acknowledge("deadLetters")
            server.cycle()
        if count == 20:
            server = bench.server()
            server.cycle()
        bench.alert(
            "deadLetters", text=f"{count}", raised_at=raised.raised_at, values={"new records": count, "new": count}
        )
        server.cycle()
        states.append(server.state("deadLetters"))
    assert states == ["ACKED", "ACKED", "UNACK", "ACKED", "ACKED", "UNACK"]


def test_what_an_on_delay_holds_back_is_an_event_all_the_same(bench, server):
    bench.alert("qualityLow")
    server.cycle()
    assert server.state("qualityLow") == "NORM"
    bench.alert("qualityLow", state="CLEARED")
    server.cycle(seconds=2.0)
    assert server.state("qualityLow") == "NORM"
    assert len(server.events()) == 2
    bench.alert("qualityLow")
    server.cycle(seconds=1.5)
    assert server.state("qualityLow") == "UNACK"
    bench.alert("qualityLow", state="CLEARED")
    server.cycle(1)
    assert server.state("qualityLow") == "UNACK"
    server.cycle(seconds=1.5)
    assert server.state("qualityLow") == "RTNUN"


def test_out_of_service_covers_an_alarm_until_it_is_returned(bench, server):
    server.act("RemoveFromService", "REMOVE_FROM_SERVICE", source="receive/1", comment="maintenance")
    bench.alert()
    server.cycle()
    assert server.state() == "OOSRV"
    server.act("ReturnToService", "RETURN_TO_SERVICE")
    assert server.state() == "UNACK"


def test_what_another_condition_explains_is_suppressed_while_that_is_active(bench, server):
    bench.alert("streamSilent", source="a")
    bench.alert("workerGone", source="b")
    server.cycle(seconds=3.0)
    assert server.shows("streamSilent") == "DSUPR"
    assert (server.shows("suppressedCount"), server.shows("activeCount"), server.shows("newAlarms")) == (1, 1, 1)
    assert json.loads(server.shows("suppressedAlerts")[0])["suppressed_by"] == "workerGone@b"
    bench.alert("workerGone", source="b", state="CLEARED")
    server.cycle()
    assert server.shows("streamSilent") == "UNACK"


def test_a_condition_that_the_icd_does_not_know_is_shown_under_a_general_name(bench, server):
    bench.alert("somethingNew")
    server.cycle()
    assert (server.shows("otherConditions"), server.shows("unknownConditions")) == ("UNACK", ("somethingNew",))
    assert server.shows("activeCount") == 1


def test_alarms_that_stand_are_counted_by_severity_in_what_reaches_sdpmaster(bench, server):
    bench.alert(source="a", severity="CRITICAL")
    bench.alert(source="b", severity="WARNING")
    bench.alert(source="c", severity="WARNING")
    server.cycle()
    (said,) = server.service.sign_of_life._complaints()
    assert said.text == "state is ALARM: 3 alarms active (1 CRITICAL, 2 WARNING), 3 not acknowledged, 0 shelved."


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "empty"),
        (b"\xff\x00", "not-json"),
        pytest.param(b'{"values":' + b"[" * 5000, "too-deep", id="deep"),
        (b'{"schema":"alert/9"}', "version"),
        pytest.param(b'{"schema":"alert/1","text":"' + b"x" * 65536, "too-large", id="large"),
        (b'{"schema":"alert-action/1","action":"DANCE"}', "schema"),
        (None, None),
    ],
)
def test_what_cannot_be_used_is_a_dead_letter_with_a_reason(bench, server, value, reason):
    bench.garbage(value)
    bench.alert()
    server.cycle()
    assert server.state() == "UNACK"
    assert [letter.split(":")[0] for letter in bench.letters()] == ([] if reason is None else [reason])
    assert [event["sequence"] for event in server.events()] == [2]


@pytest.mark.parametrize(
    ("prepare", "change", "says"),
    [
        ("nothing", {}, "at rest or was never heard of"),
        ("acknowledged", {}, "needs no acknowledgement"),
        ("active", {"occurrence": 0}, "expected the newest"),
        ("active", {"occurrence": 99}, "expected the newest"),
    ],
)
def test_an_acknowledgement_of_something_else_is_refused(bench, server, prepare, change, says):
    if prepare != "nothing":
        bench.alert()
        server.cycle()
    if prepare == "acknowledged":
        server.acknowledge()
    before = len(bench.broker.read("alerts"))
    with pytest.raises(CommandRefused, match=says):
        server.act("Acknowledge", "ACKNOWLEDGE", source="receive/1", **{"occurrence": 1, **change})
    assert len(bench.broker.read("alerts")) == before


def test_an_acknowledgement_that_a_worse_occurrence_has_overtaken_does_nothing(bench, server):
    bench.alert()
    server.cycle()
    bench.alert(severity="CRITICAL")  # on the log before the acknowledgement, and not read yet
    server.acknowledge()
    assert server.state() == "UNACK"
    assert server.shows("actionsRefused") == 1
    assert bench.letters() == [], "it is an answer to an operator, and nothing is lost"


def test_of_two_operators_who_acknowledge_at_once_the_second_is_told_of_the_first(bench, server):
    """Neither action has come back from the log when the second one is asked for."""
    raised = bench.alert()
    server.cycle()
    api = server.api
    who = {"condition": "receiveOverrun", "occurrence": 1}
    id = api.act("Acknowledge", "ACKNOWLEDGE", json.dumps({**who, "operator": "ann"}))
    when = datetime.fromtimestamp(bench.clock.now(), UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    says = f"needs no acknowledgement: its state is ACKED; ann acknowledged it at {when}"
    with pytest.raises(CommandRefused, match=says):
        api.act("Acknowledge", "ACKNOWLEDGE", json.dumps({**who, "operator": "ben"}))
    api.act(
        "Shelve",
        "SHELVE",
        json.dumps({"condition": "receiveOverrun", "operator": "ben", "comment": "rain", "duration": 60}),
    )
    api.act("Unshelve", "UNSHELVE", json.dumps({"condition": "receiveOverrun", "operator": "ben"}))
    server.cycle()
    with pytest.raises(CommandRefused, match=says):
        server.acknowledge()
    assert (server.state(), server.events()[1]["action"]["id"], bench.letters()) == ("ACKED", id, [])
    bench.alert(state="CLEARED", raised_at=raised.raised_at)
    server.cycle()
    assert server.shows("actionsTotal") == 3


def test_an_action_whose_first_try_was_not_confirmed_may_be_tried_again(bench, server):
    bench.alert()
    server.cycle()
    api, argument = server.api, '{"condition":"receiveOverrun","operator":"ann","occurrence":1}'
    server.bus.mute = True
    with pytest.raises(OutcomeUnknown):
        api.act("Acknowledge", "ACKNOWLEDGE", argument)
    server.bus.mute = False
    api.act("Acknowledge", "ACKNOWLEDGE", argument)
    server.cycle()
    assert server.state() == "ACKED"


def test_an_action_that_is_not_confirmed_while_another_is_checked_hinders_none(bench, server, monkeypatch):
    bench.alert()
    server.cycle()
    under_way, argument = server.api._on_the_way, '{"condition":"receiveOverrun","operator":"ann","comment":"x"}'
    for _ in range(2):
        server.api.act("Comment", "COMMENT", argument)

    def refused(action, alarm):
        if len(under_way) > 1:
            under_way.popitem()  # as the thread of another call does
        return refusal(action, alarm)

    monkeypatch.setattr("facade.flows.alerts.operator_api.refusal", refused)
    server.api.act("Comment", "COMMENT", argument)


def test_an_action_that_never_comes_back_refuses_others_for_some_seconds_only(bench, server):
    bench.alert()
    server.cycle()
    api, argument = server.api, '{"condition":"receiveOverrun","operator":"ann","occurrence":1}'
    api.act("Acknowledge", "ACKNOWLEDGE", argument)
    with pytest.raises(CommandRefused):
        api.act("Acknowledge", "ACKNOWLEDGE", argument)
    bench.clock.sleep(5.1)
    api.act("Acknowledge", "ACKNOWLEDGE", argument)


def test_actions_on_the_log_that_come_too_late_are_no_dead_letters_but_a_wrong_shelf_is(bench, server):
    bench.alert()
    server.cycle()
    for operator in ("ann", "ben"):
        bench.action("ACKNOWLEDGE", occurrence=1, operator=operator)
    bench.action("RESET")
    server.cycle()
    assert (server.state(), server.shows("actionsTotal"), server.shows("actionsRefused")) == ("ACKED", 1, 2)
    assert bench.letters() == []
    bench.action("SHELVE", until=bench.now_us // 1000)
    server.cycle()
    assert [letter.split(":")[0] for letter in bench.letters()] == ["action"]


def test_all_that_operators_did_is_told_with_the_alarm_also_after_a_restart(bench, server):
    raised = bench.alert("storageLow")
    server.cycle()
    server.act("Shelve", "SHELVE", "storageLow", duration=3600, comment="thunderstorm")
    server.acknowledge("storageLow", comment="seen")
    server.cycle(seconds=2.1)
    for one in (server, bench.server()):
        (alarm,) = json.loads(one.api.alarms())
        told = [(did["action"], did["operator"], did["comment"]) for did in alarm["actions"]]
        assert told == [("SHELVE", "ann", "thunderstorm"), ("ACKNOWLEDGE", "ann", "seen")]
        assert (alarm["state"], alarm["actions"][1]["time"]) == ("SHLVD", alarm["acted_at"])
        assert "actions" not in json.loads(one.shows("shelvedAlerts")[0]), "the lists stay short"
    bench.alert("storageLow", state="CLEARED", raised_at=raised.raised_at)
    one.cycle()
    one.act("Reset", "RESET", "storageLow")  # which a shelf does not forbid
    assert one.ledger.get(("storageLow", "receive/1")).state == "NORM"


@pytest.mark.parametrize(
    ("command", "kind", "argument", "says"),
    [
        ("Shelve", "SHELVE", {"comment": "x"}, "expected the key duration"),
        ("Shelve", "SHELVE", {"comment": "x", "duration": 0}, "duration: expected more than 0"),
        ("Shelve", "SHELVE", {"comment": "x", "duration": 1e9}, "at most 604800"),
        ("Shelve", "SHELVE", {"duration": 5}, "expected the key comment"),
        ("Acknowledge", "ACKNOWLEDGE", {}, "expected the key occurrence"),
        ("Reset", "RESET", {}, "not latched"),
        ("Unshelve", "UNSHELVE", {}, "not shelved"),
        ("ReturnToService", "RETURN_TO_SERVICE", {}, "in service already"),
        ("Comment", "COMMENT", {}, "expected the key comment"),
        ("Comment", "COMMENT", {"operator": "", "comment": "x"}, "operator"),
        ("Comment", "COMMENT", {"colour": "red", "comment": "x"}, "colour"),
        ("Comment", "COMMENT", {"comment": "x" * 3000}, "comment"),
        ("Comment", "COMMENT", {"comment": "x", "occurrence": 10**20}, "occurrence"),
        ("Shelve", "SHELVE", {"comment": "x", "duration": 5, "occurrence": 2**53}, "occurrence"),
        ("Comment", "COMMENT", {"comment": "x", "occurrence": -1}, "occurrence"),
        ("Comment", "COMMENT", {"comment": "x", "source": "y" * 201}, "source"),
    ],
)
def test_an_action_that_is_not_possible_says_what_was_expected(bench, server, command, kind, argument, says):
    bench.alert()
    server.cycle()
    with pytest.raises(CommandRefused, match=says):
        server.act(command, kind, **argument)
    assert len(bench.broker.read("alerts")) == 1


def test_an_action_that_its_reader_would_refuse_is_refused_in_the_call(bench, server):
    """Whatever the reason: here the name of the device server is longer than the schema has it."""
    bench.alert()
    server.cycle()
    server.api._origin = "x" * 201
    with pytest.raises(CommandRefused, match=r"schema: \$\.origin"):
        server.act("Comment", "COMMENT", comment="x")
    assert len(bench.broker.read("alerts")) == 1


def test_an_argument_that_is_no_json_is_refused_with_its_form(server):
    with pytest.raises(CommandRefused, match="expected a JSON object with the keys condition, source, operator"):
        server.api.act("Shelve", "SHELVE", "{")


def test_a_source_may_be_left_out_only_while_there_is_one(bench, server):
    bench.alert(source="a")
    bench.alert(source="b")
    server.cycle()
    with pytest.raises(CommandRefused, match="there are: a, b"):
        server.act("Comment", "COMMENT", comment="x")


def test_everything_is_back_after_a_kill(bench, server):
    bench.alert("storageLow")
    bench.alert("storageLow", state="CLEARED")
    bench.alert("qualityLow")
    bench.alert(source="a")
    bench.alert(source="b")
    server.cycle()
    server.acknowledge(source="a", comment="seen")
    server.act("Shelve", "SHELVE", source="b", duration=600, comment="known")
    names = ("storageLow", "receiveOverrun", "shelvedCount", "alertSequence", "alertsTotal", "unacknowledgedCount")
    server.cycle(seconds=2.1)  # long enough for a snapshot
    before = [server.shows(name) for name in names]
    again = bench.server()
    again.cycle()
    assert [again.shows(name) for name in names] == before
    assert again.state(source="b") == "SHLVD"
    assert again.ledger.get(("receiveOverrun", "a")).comment == "seen"
    assert again.state("qualityLow") == "UNACK"
    assert [event["sequence"] for event in again.events()] == [7]  # the newest one, to be shown


def test_what_was_sent_but_not_settled_is_sent_again_with_the_same_numbers(bench, server):
    server.cycle(1, seconds=0.0)
    for _ in range(5):
        bench.alert()
    server.cycle(1, seconds=0.0)  # sent, and killed before the next snapshot
    sent = server.events()
    assert len(sent) == 5
    again = bench.server()
    assert again.events() == sent
    assert again.shows("alertsTotal") == 5


def test_the_place_to_go_on_from_waits_for_the_states_to_be_durable(bench, server):
    server.cycle(seconds=2.1)
    bench.alert()
    server.cycle(1, seconds=0.0)
    server.bus.refused = ["alert-state"]
    bench.alert("storageLow")
    server.cycle(seconds=2.1)  # its state cannot be written
    assert len(server.events()) == 2
    server.bus.refused = []
    server.cycle(seconds=2.1)
    again = bench.server()
    assert (again.state(), again.state("storageLow"), again.shows("alertsTotal")) == ("UNACK", "UNACK", 2)


def test_a_client_that_missed_events_gets_what_it_missed_also_after_a_restart(bench, server):
    for number in range(1, 2001):
        bench.alert(text=str(number))
    server.cycle(40)
    again = bench.server()
    with pytest.raises(CommandRefused, match="not all been read"):
        again.api.since(0)
    again.cycle(10)
    for one in (server, again):
        got = json.loads(one.api.since(500))
        assert got["newest"] == 2000
        assert [entry["sequence"] for entry in got["entries"]] == [*range(501, 1501)]
        assert json.loads(one.api.since(2000)) == {
            "newest": 2000,
            "numbering": bench.broker.model.topics["alerts"].id,
            "entries": [],
        }


def abort(log):
    """Put the mark of a transaction on a log that its producer had not written to before it was killed."""
    log.mark(0, 1, 0, committed=False)


@pytest.mark.parametrize(
    "come_first", [abort, lambda log: log.append(0, b"x", b"{", (), None)], ids=["mark", "refused"]
)
def test_who_has_seen_nothing_gets_all_although_the_first_number_is_of_no_alert(bench, come_first):
    come_first(bench.broker.model.topics["alerts"].partitions[0])
    server = bench.server()
    for text in "ab":
        bench.alert(text=text)
    server.cycle()
    follower = Follower(0)
    given = [entry for event in server.events() for entry in follower.take(json.dumps(event))]
    assert [(one.sequence, one.previous) for one in given] == [(2, 0), (3, 2)]
    for one in (server, bench.server()):
        assert [entry["sequence"] for entry in json.loads(one.api.since(0))["entries"]] == [2, 3]


@pytest.mark.parametrize("left", [0, 1])
def test_who_has_not_seen_what_the_topic_lost_before_a_restart_is_told_so(bench, server, left):
    for _ in range(5):
        bench.alert()
    server.cycle(40)
    bench.broker.remove("alerts", 0, 5 - left)
    again = bench.server(10)
    with pytest.raises(CommandRefused, match=f"expected at least {5 - left}, "):
        again.api.since(2)
    assert len(json.loads(again.api.since(5 - left))["entries"]) == left


def test_who_asks_for_more_than_is_kept_is_told_from_where_on(bench, monkeypatch):
    monkeypatch.setattr("facade.flows.alerts.flow.KEPT", 10)
    server = bench.server()
    for _ in range(40):
        bench.alert()
    server.cycle()
    with pytest.raises(CommandRefused, match="expected at least 30"):
        server.api.since(29)
    assert len(json.loads(server.api.since(30))["entries"]) == 10


def test_a_refresh_gives_all_that_is_not_at_rest_between_two_marks(bench, server):
    for source in "abc":
        bench.alert(source=source)
    bench.alert(source="gone")
    bench.alert(source="gone", state="CLEARED")
    server.cycle()
    server.acknowledge(source="gone")
    id = server.api.refresh()
    before = len(server.events())
    server.cycle()
    first, *alarms, last = server.events()[before:]
    assert (first["mark"], last["mark"]) == ("START", "END")
    assert [one["alarm"]["source"] for one in alarms] == ["a", "b", "c"]
    assert {one["refresh"] for one in (first, *alarms, last)} == {id}
    assert first["alarms"] == 3


def test_a_refresh_of_many_alarms_holds_up_no_alert(bench, server):
    for number in range(1500):
        bench.alert(source=str(number))
    server.cycle(20)
    server.api.refresh()
    server.cycle(2)
    bench.alert(text="urgent")
    server.cycle(3)
    kinds = ["alert" if "alert" in e and "sequence" in e else "refresh" for e in server.events()[1500:]]
    assert "alert" in kinds
    assert kinds[-1] == "refresh"
    server.cycle(20)
    assert server.events()[-1]["mark"] == "END"


def test_too_many_refreshes_at_once_are_refused(server):
    for _ in range(8):
        server.api.refresh()
    with pytest.raises(CommandRefused, match="other clients wait"):
        server.api.refresh()
    server.cycle()
    server.api.refresh()


def test_an_alarm_that_was_forgotten_does_not_come_back_from_the_log(bench, server):
    bench.alert()
    server.cycle()
    server.acknowledge()
    bench.alert(state="CLEARED")
    server.cycle()
    server.cycle(seconds=700)
    server.cycle(seconds=2.1)
    written = len(bench.broker.read("alert-state"))
    again = bench.server()
    assert [*again.ledger.alarms()] == []
    assert len(json.loads(again.api.since(0))["entries"]) == 3
    assert len(bench.broker.read("alert-state")) == written
    assert bench.broker.read("alert-state")[-1].value is None


def packet(bench, place: str, text: str) -> None:
    """Put the alert of a packet on the log, as an intake worker does."""
    alert = Alert(
        condition="transientDetected",
        source="p",
        severity="INFO",
        state="ACTIVE",
        text=text,
        raised_at=bench.now_us,
        sequence=1,
    )
    record = alert_record(alert)
    bench.broker.append(replace(record, headers=(("packet", place.encode()),)))


def test_what_an_intake_worker_writes_again_after_a_kill_is_no_second_alert(bench, server):
    for place in ("id/3/7", "id/3/8", "id/4/1"):  # a transaction that its worker did not end
        packet(bench, place, place)
    server.cycle(seconds=2.1)
    server = bench.server()
    for place in ("id/3/7", "id/3/8", "id/3/9", "id/4/1"):  # the next one begins where the first had begun
        packet(bench, place, place)
    server.cycle()
    assert [event["alert"]["text"] for event in server.events()][-1:] == ["id/3/9"]
    assert server.shows("alertsTotal") == 4
    server.cycle(seconds=2.1)
    for one in (server, bench.server()):
        texts = [entry["alert"]["text"] for entry in json.loads(one.api.since(0))["entries"]]
        assert texts == ["id/3/7", "id/3/8", "id/4/1", "id/3/9"]
    assert server.shows("alertsTotal") == 4


@settings(max_examples=examples(60))
@given(st.lists(st.integers(0, 5), max_size=20), st.integers(0, 20))
def test_an_alert_that_comes_twice_is_one_event_with_one_number(sent, read):
    """A rack's mirror that was killed, and a source that got no answer, send the same record again."""
    bench = Bench()
    records = [alert_record(bench.alert(text=f"alert {number}", source="once")) for number in range(6)]
    server = bench.server()
    for number in sent[:read]:
        bench.broker.append(records[number])
    server.cycle(40)
    again = bench.server()
    for number in sent[read:]:
        bench.broker.append(records[number])
    again.cycle()
    entries = json.loads(again.api.since(0))["entries"]
    assert [(one["sequence"], one["alert"]["text"]) for one in entries] == [(n + 1, f"alert {n}") for n in range(6)]
    assert again.shows("alertsTotal") == 6


@pytest.mark.parametrize(
    "bad",
    ["0/999999999999", "other/0/999999999999", "id/0/" + "9" * 5000, "id/1/999999999999", "id//9", "id/0/-1", "/", ""],
)
def test_a_bad_header_of_a_packet_harms_no_other_alert(bench, server, bad):
    for place in ("id/0/6", bad, "id/0/7", "0/7", "0/7", "id/0/8"):
        packet(bench, place, place[:50])
    server.cycle()
    texts = [event["alert"]["text"] for event in server.events()]
    assert texts == ["id/0/6", bad[:50], "id/0/7", "0/7", "0/7", "id/0/8"]


def test_packets_of_many_logs_are_known_again_in_bounded_memory(bench, monkeypatch):
    monkeypatch.setattr(alerts_flow, "_MOST_LOGS", 3)
    server = bench.server()
    for place in ("a/0/5", "b/0/5", "c/0/5", "a/0/6", "d/0/5", "a/0/6", "c/0/5", "b/0/5"):
        packet(bench, place, place)
    server.cycle()
    assert [event["alert"]["text"] for event in server.events()][4:] == ["d/0/5", "b/0/5"]
    assert len(server.flow.as_dict()["packets"]) == 3


@pytest.mark.parametrize("again", [{}, {"raised_at": 1}])
def test_what_is_put_back_after_a_clear_is_an_event_and_no_alarm_and_is_counted(bench, server, again):
    """Its numbers are no news of the source: none is missing after it."""
    first = bench.alert()
    for number in range(5):
        bench.alert("storageLow", source="other", text=str(number))
    bench.alert(state="CLEARED", raised_at=first.raised_at, sequence=1)
    old = msgspec.structs.replace(first, sequence=7, **again)
    bench.broker.append(replace(alert_record(old), headers=(("redriven.from", b"0:5"), ("packet", b"id/0/7"))))
    bench.alert(sequence=2, raised_at=bench.now_us + 1)
    server.cycle()
    assert [event["alert"]["sequence"] for event in server.events()][-3:] == [1, 7, 2]
    assert (server.state(), server.shows("alertsOutOfOrder"), server.shows("alertsMissing")) == ("UNACK", 1, 0)
    assert server.ledger.get(("receiveOverrun", "receive/1")).raised == 2
    assert server.service.event_loop.accounts["alerts"].reasons["overtaken"] == 1


def test_the_history_of_an_alarm_says_who_did_what(bench, server):
    bench.alert()
    bench.alert("storageLow")
    server.cycle()
    server.acknowledge(comment="seen")
    newest, oldest = json.loads(server.api.history('{"condition":"receiveOverrun","source":"receive/1"}'))
    assert (newest["action"]["comment"], oldest["alert"]["text"]) == ("seen", "too fast")
    with pytest.raises(CommandRefused, match="most"):
        server.api.history('{"condition":"x","most":0}')


def test_chattering_and_a_flood_are_shown_and_nothing_is_dropped(bench, server):
    for _ in range(4):
        bench.alert()
        bench.alert(state="CLEARED")
        server.cycle(1)
    server.cycle()
    assert server.shows("chatteringAlerts") == ("receiveOverrun@receive/1",)
    assert not server.shows("flood")
    for number in range(12):
        bench.alert(source=str(number))
    server.cycle()
    assert server.shows("flood")
    assert len(server.events()) == 20
    server.cycle(seconds=300)
    assert (server.shows("flood"), server.shows("chatteringAlerts")) == (False, ())


def test_numbers_that_a_source_left_out_are_counted(bench, server):
    for sequence in (1, 2, 5, 6, 9):
        bench.alert(sequence=sequence)
    server.cycle()
    assert server.shows("alertsMissing") == 4


def test_a_state_that_cannot_be_read_is_noted_and_hides_no_other(bench, server):
    bench.alert()
    server.cycle(seconds=2.1)
    bench.broker.append(Record(topic="alert-state", key=b"a@b", value=b'{"schema":"alert-state/1"}'))
    again = bench.server()
    assert again.state() == "UNACK"
    assert (
        "state at offset 1 of alert-state is not usable: schema: $: Object missing required"
        in again.bus.health.last_error
    )


@pytest.mark.parametrize(
    ("name", "example"),
    [
        ("alert", Alert(condition="a", source="b", severity="INFO", state="ACTIVE", text="", raised_at=1, sequence=1)),
        (
            "alert-action",
            Action(id="1", action="SHELVE", condition="a", source="b", operator="o", comment="", time=1, origin="x"),
        ),
        ("alert-state", Alarm(condition="a", source="b", state="NORM", through=3)),
    ],
)
def test_the_structs_and_the_schemas_have_the_same_fields(name, example):
    compiled = compile_message(name, ICD.messages[name])
    assert BatchDecoder(compiled).decode([encode(example)]).unused == {}
    assert {field.name for field in msgspec.structs.fields(compiled)} - {"schema"} == {
        field.name for field in msgspec.structs.fields(type(example))
    }
