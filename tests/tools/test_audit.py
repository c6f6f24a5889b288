"""Who did what: commands, refusals, actions about alarms, modes and redrives, as `sdp-facade audit` lists them."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from facade.admin import redrive
from facade.flows.alerts.messages import Action, action_records
from facade.flows.commands.audit import command_entry, mode_entry, refusal_entry
from facade.flows.commands.messages import StateMessage
from facade.flows.overview.page_acts import act_record
from facade.kernel.bus.port import Record
from facade.kernel.cli.app import app
from facade.kernel.clock import SystemClock, as_time
from facade.kernel.config import Settings
from facade.kernel.errors import CommandRefused
from facade.kernel.icd.load import load as load_icd
from facade.kernel.manifest import AuditEntry
from facade.sdp.device_state import state_record
from facade.sdp.messages import PageAct
from facade.tools.audit import dead_letter_entry, rests_on, sources
from tests.support.alerting import alert
from tests.support.commanding import SUBARRAY, Bench

WHO = "10.0.0.7, process 4242"
SCAN = {"interface": "https://schema.skao.int/ska-sdp-scan/0.4", "scan_id": 7}


def acted(now: float, comment: str = "seen") -> Record:
    action = Action(
        id="1", action="ACKNOWLEDGE", condition="storageLow", source="s/1", operator="bob", comment=comment,
        time=round(now * 1e6), origin="alerts", client=WHO,
    )  # fmt: skip
    return action_records(action)[0]


def mode(now: float, operator: str = "") -> Record:
    message = StateMessage(
        device=SUBARRAY, attribute="adminMode", value="OFFLINE", time=round(now * 1e6), origin=SUBARRAY, client=WHO,
        operator=operator,
    )  # fmt: skip
    return state_record(message, "settings")


def test_commands_and_refusals_say_who_asked_and_who_they_said_they_were() -> None:
    bench = Bench()
    server = bench.server()
    bench.report(State="ON", obsState="READY")
    server.cycle()
    server.give("Scan", SCAN, client=WHO, operator="ann")
    with pytest.raises(CommandRefused):
        server.give("Configure", {}, client=WHO)
    server.cycle()
    (given,), (refused,) = bench.broker.read("commands"), bench.broker.read("command-refusals")
    entry, said = command_entry(given), refusal_entry(refused)
    assert entry is not None
    assert said is not None
    assert (entry.act, entry.target, entry.client, entry.operator) == ("Scan", SUBARRAY, WHO, "ann")
    assert json.loads(entry.said) == SCAN
    assert (said.act, said.client, said.operator) == ("Configure refused", WHO, "")
    (command,) = bench.commands()
    assert command_entry(Record(topic="commands", key=b"", value=b"junk")) is None
    order = given.value.replace(b'"origin"', b'"parent":"1_2_Scan","origin"') if given.value else b""
    ordered = command_entry(replace(given, value=order))
    assert ordered is not None
    assert (ordered.act, ordered.client, ordered.operator) == ("Scan ordered", f"controller {command.origin}", "")
    assert ordered.said.startswith("for 1_2_Scan ")
    assert command.client == WHO


def test_commands_from_hosts_that_are_not_listed_are_refused_with_the_reason() -> None:
    bench = Bench()
    server = bench.server()
    bench.report(State="ON", obsState="READY")
    server.cycle()
    listed = replace(server.gateway, commanders=Settings(commanders="10.0.0.7, this host").may_command)
    for client in ("10.0.0.9, process 1", "10.0.0.70, process 1", ""):
        with pytest.raises(CommandRefused, match=r"expected a client on one of 10\.0\.0\.7, this host, got") as refused:
            listed.give(SUBARRAY, "Scan", json.dumps(SCAN), client=client)
        assert refused.value.reason == "API_CommandNotAllowed"
    assert bench.commands() == []
    assert listed.give(SUBARRAY, "Scan", json.dumps(SCAN), client=WHO)
    assert len(bench.commands()) == 1
    with pytest.raises(CommandRefused, match="under way"):
        listed.give(SUBARRAY, "Scan", json.dumps(SCAN), client="this host (sdp-1), process 1")
    assert Settings().may_command == frozenset()


def test_of_states_and_alerts_only_what_people_do_is_listed() -> None:
    for operator in ("", "eve"):
        found = mode_entry(mode(5.0, operator))
        assert found == AuditEntry(5_000_000, "adminMode OFFLINE", SUBARRAY, WHO, operator, kind="mode")
    assert "state" not in sources(), "controllers write there, also that somebody has set a mode"
    assert sources()["alert-actions"](acted(6.0)) == AuditEntry(
        6_000_000, "ACKNOWLEDGE", "storageLow@s/1", WHO, "bob", "seen", "alarm"
    )
    assert sources()["alert-actions"](alert()) is None
    assert "alerts" not in sources(), "each source of alerts may write there, also that somebody has acted"


def test_a_redrive_says_who_put_the_record_back() -> None:
    headers = tuple(
        (f"dl.{name}", value)
        for name, value in (
            ("topic", b"ingest.heaps"), ("partition", b"1"), ("offset", b"7"), ("timestamp_us", b"1"),
            ("reason", b"schema"), ("path", b"$"), ("detail", b"d"), ("by", b"w"),
        )
    )  # fmt: skip
    dead_letter = Record(topic="dead-letters", key=b"1", value=b"x", headers=headers, partition=0, offset=3)
    back, mark = redrive.put_back(dead_letter, "ann at desk, process 7", 9_000_000)
    expected = AuditEntry(9_000_000, "redrive", "ingest.heaps/1/7", "ann at desk, process 7", "", kind="redrive")
    for appended in (9_100_000, 99_000_000):
        assert dead_letter_entry(replace(mark, timestamp_us=appended)) == expected, "a mark that comes again as well"
    for stated in (b"9" * 99, b"-1", "\u0664".encode()):
        headers = tuple((name, stated if name == redrive.AT else value) for name, value in mark.headers)
        assert dead_letter_entry(replace(mark, headers=headers, timestamp_us=8_000_000)) == expected._replace(
            time=8_000_000
        )
    assert dead_letter_entry(dead_letter) is None
    assert redrive.CLIENT not in dict(back.headers)
    assert redrive.CLIENT not in dict(redrive.put_back(dead_letter)[1].headers)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Record]]:
    """Return the records that the command finds by topic."""
    records: dict[str, list[Record]] = {}

    def read(_: object, topic: str, __: object) -> Iterator[Record]:
        return iter(records.get(topic, []))

    monkeypatch.setattr("facade.tools.audit.find_range", lambda *_, **__: {})
    monkeypatch.setattr("facade.tools.audit.read_range", read)
    return records


def test_the_list_is_by_time_within_the_time_and_of_whom_is_asked_for(log: dict[str, list[Record]]) -> None:
    now = SystemClock().now()
    said = PageAct(act="comment", time=as_time(now - 30), origin="page/desk", person="ann", text="rain")
    log |= {"alert-actions": [acted(now - 10), acted(now - 100_000)], "settings": [mode(now - 20)]}
    log["page-acts"] = [act_record(said)]

    def run(*arguments: str) -> list[str]:
        done = CliRunner().invoke(app, ["audit", "--json", *arguments])
        assert done.exit_code == 0, done.output
        return [one["act"] for one in json.loads(done.output)]

    assert run() == ["comment at the page", "adminMode OFFLINE", "ACKNOWLEDGE"]
    assert run("--since", "3d") == ["ACKNOWLEDGE", "comment at the page", "adminMode OFFLINE", "ACKNOWLEDGE"]
    assert run("--by", "bob") == ["ACKNOWLEDGE"]
    assert run("--limit", "1") == ["ACKNOWLEDGE"]
    assert run("--kind", "mode") == ["adminMode OFFLINE"]
    assert run("--kind", "comment") == ["comment at the page"]
    assert run("--on", "storageLow@") == ["ACKNOWLEDGE"]
    wrong = CliRunner().invoke(app, ["audit", "--kind", "modes"])
    assert wrong.exit_code
    assert "expected one of command, approval, refusal" in str(wrong.exception)
    shown = CliRunner().invoke(app, ["audit"]).output
    assert "storageLow@s/1" in shown
    assert "nobody did anything" in CliRunner().invoke(app, ["audit", "--by", "eve"]).output


def test_what_was_said_is_cut_to_a_line(log: dict[str, list[Record]]) -> None:
    log |= {"alert-actions": [acted(SystemClock().now() - 10, comment="because " * 60)]}
    lines = [line for line in CliRunner().invoke(app, ["audit"]).output.splitlines() if "because" in line]
    assert len(lines) == 1
    assert re.match(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d  ACKNOWLEDGE  storageLow@s/1  ", lines[0])
    assert "  bob       because because" in lines[0]
    assert "…  " in lines[0]


SECURED = {"security.protocol": "SASL_SSL", "sasl.username": "sdp-inspector"}


@pytest.mark.parametrize(
    ("topic", "settings", "said"),
    [
        ("commands", SECURED, "the login of control or subarray"),
        ("commands-held", SECURED, "the login of control or subarray"),
        ("command-refusals", {"security.protocol": "ssl", "ssl.keystore.location": "/k"}, "the login of control or"),
        ("dead-letters", SECURED, f"the login of any of {len(load_icd().topics['dead-letters'].writers)} roles"),
        ("commands", {}, "nothing: the brokers ask for no login, so anybody could have written it"),
        ("commands", {"security.protocol": "SSL"}, "nothing: the brokers ask for no login"),
    ],
)
@pytest.mark.parametrize("operator", ["", "ann"])
def test_a_line_says_on_which_right_it_rests(topic: str, settings: dict[str, str], said: str, operator: str) -> None:
    found = rests_on(
        load_icd().topics[topic], Settings(kafka=settings), AuditEntry(1_000_000, "On", "d", "c", operator)
    )
    assert found.startswith(said)
    assert found.endswith("; the operator's name is the caller's word") == (bool(operator and settings.keys() - {
        "security.protocol"}))  # fmt: skip


def test_a_record_of_the_past_that_is_written_again_is_no_new_act(log: dict[str, list[Record]]) -> None:
    """A copy has the time of the act: it is listed once, and not at all if the act was before."""
    bench = Bench()
    server = bench.server()
    bench.report(State="ON", obsState="READY")
    server.cycle()
    server.give("Scan", SCAN, client=WHO, operator="ann")
    with pytest.raises(CommandRefused):
        server.give("Configure", {}, client=WHO)
    server.cycle()
    (given,), (refused,) = bench.broker.read("commands"), bench.broker.read("command-refusals")
    now = SystemClock().now()
    records = [
        given,
        replace(given, topic="commands-held"),
        refused,
        acted(now - 10),
        mode(now - 20),
        acted(now - 9000),
    ]
    for copy in (0, 1_000_000):
        for record in records:
            again = replace(record, timestamp_us=round(now * 1e6) + copy)
            log.setdefault(record.topic, []).append(again)

    def run(since: str) -> list[str]:
        done = CliRunner().invoke(app, ["audit", "--json", "--since", since])
        assert done.exit_code == 0, done.output
        found = json.loads(done.output)
        assert all(one["rests_on"].startswith("nothing: ") for one in found), "as the settings name no login"
        return [one["act"] for one in found]

    assert run("1h")[:2] == ["adminMode OFFLINE", "ACKNOWLEDGE"]
    listed = ["ACKNOWLEDGE", "ACKNOWLEDGE", "Configure refused", "Scan", "Scan held", "adminMode OFFLINE"]
    assert sorted(run("1d")) == listed
