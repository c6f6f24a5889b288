"""`sdp-facade status`: one word, an exit code, and what is wrong with what to do, the worst first."""

import json
import os
import subprocess
import sys

import pytest
from rich.text import Text
from typer.testing import CliRunner

from facade.kernel.cli.app import app
from facade.kernel.findings import EXIT_CODES, line
from facade.kernel.icd.load import load
from sdp_facade_clients import alert_commands, ask, cli
from sdp_facade_clients.status import Seen, judge, questions, see
from tests.support.waiting import HANG

ICD = load()
CONDITIONS = ICD.conditions
FINE = Seen(
    servers={"alerts": "", "control": ""},
    master={"State": "ON", "healthState": "OK", "healthInfo": (), "healthIssues": ()},
    bus={"State": "ON", "Status": "The device is in ON state.\nAll streams balance."},
    alerts={"State": "ON", "Status": "The device is in ON state."},
    alarms=(),
)


def alarm(state="UNACK", severity="ALARM", condition="workerGone", source="sdp-facade"):
    return {
        "condition": condition,
        "source": source,
        "state": state,
        "severity": severity,
        "text": "t",
        "occurrence": 1,
    }


def health(state, *reasons, **alarm_of):
    levels = (state, *["DEGRADED"] * len(reasons))
    issues = [{"health": one, "text": text, **alarm_of} for one, text in zip(levels, reasons, strict=False)]
    said = {"healthInfo": reasons, "healthIssues": tuple(map(json.dumps, issues))}
    return {"master": {"State": "ALARM", "healthState": state, **said}}


DOWN = {"servers": {"alerts": "", "control": "", "ingest-00": "is not exported"}}


@pytest.mark.parametrize(
    ("changed", "word", "first"),
    [
        ({}, "OK", None),
        (health("DEGRADED", "a lags", "b lags"), "DEGRADED", "a lags"),
        (health("FAILED", "no worker", "b lags"), "FAILED", "no worker"),
        (health("FAILED"), "FAILED", "no reason is given"),
        (health("BROKEN", "beyond repair"), "UNKNOWN", "beyond repair"),
        (health("UNKNOWN", "no Kafka broker reachable"), "UNKNOWN", "no Kafka broker"),
        (health(None), "UNKNOWN", "the health of SDP is not known"),
        ({"master": None}, "UNKNOWN", "the health of SDP is not known"),
        ({"master": None, "alarms": (alarm(severity="CRITICAL"),)}, "UNKNOWN", "is not known"),
        (DOWN, "DEGRADED", "is not exported"),
        (DOWN | health("FAILED", "no worker"), "FAILED", "no worker"),
        ({"servers": {}}, "UNKNOWN", "is registered"),
        ({"bus": None}, "DEGRADED", "does not answer"),
        ({"bus": {"State": "FAULT", "Status": "The device is in FAULT state.\nbroken"}}, "FAILED", "broken"),
        ({"alarms": None}, "DEGRADED", "alarms are not known"),
        ({"alerts": None}, "DEGRADED", "alarms are not known"),
        ({"alerts": {"State": "UNKNOWN", "Status": "The device is in UNKNOWN state.\nold"}}, "UNKNOWN", "old"),
        *(
            ({"alarms": (alarm(state),)}, "DEGRADED", f"ALARM {state}")
            for state in ("UNACK", "ACKED", "LTUNK", "LTACK")
        ),
        ({"alarms": (alarm("RTNUN"),)}, "ATTENTION", "ALARM RTNUN"),
        *(({"alarms": (alarm(state),)}, "OK", ": 1") for state in ("SHLVD", "DSUPR", "OOSRV")),
        *(({"alarms": (alarm(state, "INFO"),)}, "ATTENTION", "INFO") for state in ("UNACK", "RTNUN", "LTUNK")),
        ({"alarms": (alarm("ACKED", "INFO"),)}, "OK", "INFO ACKED"),
        ({"alarms": [alarm(source=str(one)) for one in range(30)]}, "DEGRADED", "ALARM UNACK"),
        ({"workers": {"workersAlive": 1, "workersWanted": 3}}, "OK", "1 alive, 3 wanted"),
        ({"workers": {"workersAlive": 3, "workersWanted": 1}}, "OK", "1 would be enough"),
        ({"workers": {"workersAlive": 2, "workersWanted": 2}}, "OK", None),
        ({"workers": {"workersAlive": 2, "workersWanted": 0}}, "OK", None),
    ],
)
def test_the_worst_comes_first_and_gives_the_word(changed, word, first):
    found, findings = judge(FINE._replace(**changed), CONDITIONS)
    assert found == word
    assert first is None or first in findings[0].text
    assert (first is None) is (not findings)
    assert len(findings) <= 12


def test_an_alarm_says_what_to_do():
    _, (finding,) = judge(FINE._replace(alarms=(alarm(),)), CONDITIONS)
    assert finding.do == CONDITIONS["workerGone"].response
    assert Text.from_markup(line(finding)).plain.endswith(f"-> {finding.do} (see alerts.md#workergone)")


def test_the_first_line_counts_the_alarms_by_what_they_need(sees):
    alarms = [
        alarm(state, source=str(n)) for n, state in enumerate(("UNACK", "RTNUN", "ACKED", "SHLVD", "DSUPR", "OOSRV"))
    ]
    sees(FINE._replace(alarms=alarms))
    first = CliRunner().invoke(app, ["status", "--tango-host", "here:1"]).output.splitlines()[0]
    assert first.endswith("alarms: 2 not acknowledged, 1 acknowledged, 3 shelved, suppressed or out of service")


GONE = {"condition": "workerGone", "source": "sdp-facade"}


@pytest.mark.parametrize(
    ("state", "word"),
    [
        ("UNACK", "FAILED"),
        ("ACKED", "FAILED"),
        (None, "FAILED"),
        *((state, "OK") for state in ("SHLVD", "DSUPR", "OOSRV")),
    ],
)
def test_a_problem_is_told_once_with_its_alarm_and_what_to_do_and_not_while_it_is_shelved(state, word):
    alarms = () if state is None else (alarm(state),)
    found, findings = judge(FINE._replace(alarms=alarms, **health("FAILED", "no worker", **GONE)), CONDITIONS)
    assert found == word
    (finding,) = findings
    if word == "FAILED":
        assert finding.text.endswith("no worker")
        assert (state or "no worker") in finding.text
        assert finding.do == CONDITIONS["workerGone"].response
    else:
        assert ": 1" in finding.text


def test_alarms_are_told_one_by_one_and_not_again_as_the_state_of_their_device():
    said = health("DEGRADED", "mid-sdp/alerts/0: state is ALARM: 1 active", device="mid-sdp/alerts/0")
    assert judge(FINE._replace(alarms=(alarm("SHLVD"),), **said), CONDITIONS)[0] == "OK"
    found, findings = judge(FINE._replace(alarms=(alarm(),), **said), CONDITIONS)
    assert (found, len(findings)) == ("DEGRADED", 1)


def test_a_device_is_named_once_in_its_line():
    device = "mid-sdp/calibration/01"
    said = health("DEGRADED", f"{device}: state is ALARM: no solution", device=device)
    (found,) = judge(FINE._replace(**said), CONDITIONS).findings
    assert (found.about, found.text) == (device, "state is ALARM: no solution")


def test_a_server_that_sdp_master_misses_as_well_is_told_once():
    gone = {"condition": "serverGone", "source": "sdp-facade/ingest-00", "severity": "CRITICAL"}
    _, findings = judge(
        FINE._replace(**DOWN, **health("DEGRADED", "device server ingest-00 silent", **gone)), CONDITIONS
    )
    assert [one.text for one in findings] == ["device server ingest-00 silent"]
    _, (finding,) = judge(FINE._replace(**DOWN, alarms=(alarm("DSUPR", **{**gone, "severity": "ALARM"}),)), CONDITIONS)
    assert "explains" in finding.text


def test_what_sdp_master_says_is_not_said_again_by_sdp_bus():
    bus = {"State": "ALARM", "Status": "The device is in ALARM state.\na lags\nb breaks"}
    _, findings = judge(FINE._replace(bus=bus, **health("DEGRADED", "a lags")), CONDITIONS)
    assert [one.text for one in findings] == ["a lags", "ALARM: b breaks"]


@pytest.mark.parametrize("value", [len(ICD.enums["HealthState"]), "BROKEN"])
def test_a_health_that_only_a_newer_server_has_is_unknown_and_shown(value):
    answers = {"master": FINE.master | {"healthState": value}, "bus": FINE.bus, "alerts": FINE.alerts}
    answers |= {"workers": None, "servers": {"deviceServers": ["control"]}}
    seen = see(answers, (), (), lambda _: "", ICD.enums["HealthState"])
    word, (finding,) = judge(seen, CONDITIONS)
    assert (word, finding.text) == ("UNKNOWN", f"health is {value}, and no reason is given")


def test_settings_are_read_when_a_command_runs(monkeypatch):
    """A program that imports the clients may set them later, and a wrong one is an error of the command."""
    import_all = "import sdp_facade_clients.alert_commands, sdp_facade_clients.ask, sdp_facade_clients.web.site"
    wrong = {**os.environ, "SDP_TELESCOPE": "Neither!"}
    subprocess.run([sys.executable, "-c", import_all], env=wrong, check=True, timeout=HANG)

    monkeypatch.setenv("SDP_TELESCOPE", "low")
    assert {device for device, _ in questions().values()} == {
        f"low-sdp/{one}/0" for one in ("control", "bus", "alerts")
    }
    finding = judge(FINE._replace(master=None), CONDITIONS).findings[0]
    assert finding.device == "low-sdp/control/0"
    asked = []
    monkeypatch.setattr(ask, "AskedDevice", lambda host, device, server: asked.append(device))
    monkeypatch.setattr(alert_commands, "require_tango_database", lambda tango_host: None)
    CliRunner().invoke(app, ["alerts", "list", "--tango-host", "here:1"])
    assert asked == ["low-sdp/alerts/0"]


@pytest.fixture
def sees(monkeypatch):
    def see(what):
        def look(*_):
            if isinstance(what, Exception):
                raise what
            return what

        monkeypatch.setattr(cli, "require_tango_database", lambda tango_host: None)
        monkeypatch.setattr(ask, "look", look)

    return see


@pytest.mark.parametrize("word", EXIT_CODES)
def test_the_exit_code_follows_the_word(sees, word):
    sees(FINE._replace(**(health(word) if word == "OK" else health(word, "a\x1b[2J"))))
    done = CliRunner().invoke(app, ["status", "--tango-host", "here:1", "--json"])
    assert done.exit_code == EXIT_CODES[word] == json.loads(done.output)["exit_code"]
    plain = CliRunner().invoke(app, ["status", "--tango-host", "here:1"])
    assert plain.output.startswith(word)
    assert "2 of 2 device servers answer" in plain.output
    assert "\x1b" not in plain.output
