"""What an operator types: alarms are chosen by number, condition or source, acted upon, and listed with what to do."""

import json
from contextlib import suppress
from threading import Thread
from unittest.mock import Mock

import pytest
from typer.testing import CliRunner

from devices.alerts import ACTIONS as OF_THE_DEVICE
from facade.flows.alerts.follower import FollowedAlert
from facade.flows.alerts.operator_api import OperatorApi
from facade.kernel.cli.app import app
from facade.kernel.clock import ManualClock
from facade.kernel.errors import ConfigError, InfraError
from sdp_facade_clients import alert_commands, alert_subscription
from sdp_facade_clients.alarm_choice import ACTIONS, choose
from tests.support.alerting import Bench


class Tango:
    """Answers as the device does, without Tango between."""

    def __init__(self, server):
        self.server = server

    def command(self, name, argument=None):
        api = self.server.service.find(OperatorApi)
        if name in OF_THE_DEVICE:
            id = api.act(name, OF_THE_DEVICE[name], argument, "10.0.0.7, process 42")
            self.server.cycle()
            return id
        return api.alarms() if name == "GetAlarms" else api.history(argument)

    def read(self, *names):
        return {name: self.server.shows(name) for name in names}


@pytest.fixture
def bench():
    return Bench()


@pytest.fixture
def server(bench, monkeypatch):
    server = bench.server()
    monkeypatch.setattr(alert_commands, "_server", lambda tango_host, device: Tango(server))
    return server


def run(words, code=0):
    done = CliRunner().invoke(app, ["alerts", *words.split()], env={"COLUMNS": "200"}, catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done.output


def test_the_list_says_what_is_wrong_and_what_to_do_the_most_urgent_first(bench, server):
    assert run("list") == "no alarms: all conditions are at rest\n"
    bench.alert("deadLetters", source="a", severity="WARNING", text="2 records\x1b[2J")
    bench.alert("storageLow", source="b", severity="CRITICAL")
    server.cycle()
    lines = run("list").splitlines()
    assert lines[0].split()[:6] == ["2", "UNACK", "CRITICAL", "storageLow", "of", "b"]
    assert (
        lines[-1].strip()
        == "-> Look at them with sdp-facade dead-letters list, and inform the team that writes the stream. "
        "(see alerts.md#deadletters)"
    )
    assert r"2 records\u001b[2J" in lines[-2]
    assert [one["condition"] for one in json.loads(run("list --json"))] == ["storageLow", "deadLetters"]


def test_an_occurrence_is_acknowledged_by_its_number_and_not_one_that_came_later(bench, server):
    raised = bench.alert(severity="WARNING")
    server.cycle()
    bench.alert(severity="CRITICAL", raised_at=raised.raised_at)
    server.cycle()
    with pytest.raises(
        ConfigError, match=r"^'1': expected the number of an alarm.*there are: 2 receiveOverrun@receive/1;"
    ):
        run("ack 1")
    assert "by ann: action" in run("ack 2 --operator ann")
    assert server.state() == "ACKED"
    assert "refused: receiveOverrun of receive/1 needs no acknowledgement" in run("ack 2", code=1)


def test_several_are_shown_first_and_done_with_yes(bench, server):
    for source in "abc":
        bench.alert("storageLow", source=source)
    server.cycle()
    assert "nothing was done yet: ack concerns 3 alarms" in run("ack --all", code=1)
    assert server.shows("unacknowledgedCount") == 3
    assert len(json.loads(run("ack storageLow@a storageLow@b --yes --json"))) == 2
    assert server.shows("unacknowledgedCount") == 1
    assert run("ack --all").count("action") == 1, "one needs no second word"
    assert run("ack --all") == "nothing to do: no alarm is in a state for ack\n"


def test_a_shelf_says_until_when_and_the_history_who_it_was(bench, server):
    bench.alert()
    server.cycle()
    with pytest.raises(ConfigError, match=r"^--comment: expected a reason, got none"):
        run("shelve receiveOverrun --for 1h")
    run("shelve receiveOverrun --for 1h --comment known --operator ann")
    assert "shelved until" in run("list")
    run("ack 1 --comment seen --user ben")
    told = [line.strip() for line in run("list").splitlines() if " by " in line]
    assert [line.partition(" at ")[0] for line in told] == ["SHELVE by ann", "ACKNOWLEDGE by ben"]
    assert told[0].endswith(" UTC: known")
    run("unshelve receiveOverrun --user ben")
    assert "shelved until" not in run("list")
    newest, _, before, _ = run("history receiveOverrun").splitlines()
    assert newest.endswith("UNSHELVE          receiveOverrun of receive/1  ben")
    until = alert_commands.json.loads(run("history 1 --json"))[2]["action"]["until"] / 1e6
    assert until == pytest.approx(bench.clock.now() + 3600, abs=10)
    assert "ann until " in before
    assert before.endswith(" UTC: known")


def test_one_alarm_is_shown_as_a_whole_with_the_client_of_each_action(bench, server):
    bench.alert("storageLow", source="a")
    bench.alert("storageLow", source="b")
    server.cycle()
    run("ack storageLow@b --comment seen --user ben")
    lines = run("show storageLow@b").splitlines()
    assert "storageLow of b" in lines[0]
    assert any("ACKNOWLEDGE by ben (10.0.0.7, process 42) at " in line and line.endswith(": seen") for line in lines)
    assert sum("ACTIVE" in line for line in lines) == 1, "the history of this alarm only"
    assert len(run("show storageLow --most 1").splitlines()) > len(lines), "both of the condition"
    (shown,) = json.loads(run("show storageLow@b --json"))
    assert [one["client"] for one in shown["actions"]] == ["10.0.0.7, process 42"]
    assert [entry["sequence"] for entry in shown["history"]] == [3, 2]
    with pytest.raises(ConfigError, match=r"'storageHigh': expected the number of an alarm"):
        run("show storageHigh")


def test_the_history_leaves_out_texts_that_only_were_brought_up_to_date(bench, server):
    raised = bench.alert("streamLagging", text="0")
    for count in range(1, 9):
        bench.alert("streamLagging", text=str(count), raised_at=raised.raised_at)
        server.cycle()
    (line,) = run("history streamLagging").splitlines()
    assert line.endswith(" 8")


def test_what_may_come_is_shelved_or_removed_before_it_does(bench, server):
    run("remove-from-service receiveOverrun@receive/9 --comment rebuilt")
    assert server.state(source="receive/9") == "OOSRV"
    run("return-to-service receiveOverrun")
    assert server.state(source="receive/9") == "NORM"


def test_several_that_may_come_are_named_before_anything_is_done(server):
    """An alarm that does not stand has no state, which ended in a traceback."""
    told = run("remove-from-service receiveOverrun@receive/8 receiveOverrun@receive/9 --comment rebuilt", code=1)
    assert [line.strip() for line in told.splitlines()[:2]] == [f"receiveOverrun of receive/{n}" for n in (8, 9)]
    assert "nothing was done yet: remove-from-service concerns 2 alarms; say --yes to do it" in told


@pytest.mark.parametrize("form", ["", " --json"])
def test_what_is_done_is_told_although_the_device_server_goes_away_in_the_middle(bench, server, monkeypatch, form):
    for source in "abc":
        bench.alert("storageLow", source=source, severity="CRITICAL")
    server.cycle()
    command, done = Tango.command, []

    def go_away(self, name, argument=None):
        if name == "Acknowledge":
            if len(done) == 2:
                raise InfraError("it does not answer")
            done.append(json.loads(argument)["source"])
        return command(self, name, argument)

    monkeypatch.setattr(Tango, "command", go_away)
    words = f"alerts ack --all --yes{form}".split()
    ended = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    assert isinstance(ended.exception, InfraError)
    assert len(done) == 2
    if form:
        assert [one["source"] for one in json.loads(ended.stdout)] == done
    else:
        assert [line.split()[3] for line in ended.stdout.splitlines()] == done


def test_a_list_that_is_not_to_be_relied_on_is_a_failure(server, monkeypatch):
    monkeypatch.setattr(Tango, "read", lambda self, *names: {"State": "UNKNOWN", "Status": "No broker."})
    assert "not to be relied on: No broker." in run("list", code=1)


def test_nothing_is_said_of_alarms_before_all_are_known(bench, server):
    server.service.find(OperatorApi)._ready = lambda: False
    with pytest.raises(Exception, match="have not all been read yet"):
        run("list")


@pytest.mark.parametrize(
    ("words", "every", "what"),
    [
        ([], False, "got neither"),
        (["a"], True, "got both"),
        (["x"], False, "there are: no alarms"),
        (["3"], False, "'3'"),
    ],
)
def test_who_names_no_alarm_is_told_so(words, every, what):
    with pytest.raises(ConfigError, match=what):
        choose([], words, ACTIONS["ack"], every=every)


def test_a_condition_whose_alarms_are_in_another_state_is_refused():
    alarm = {"condition": "a", "source": "s", "state": "ACKED", "occurrence": 1, "severity": "INFO"}
    with pytest.raises(ConfigError, match=r"a: expected an alarm in one of the states SHLVD, got ACKED"):
        choose([alarm, {**alarm, "source": "t"}], ["a"], ACTIONS["unshelve"])


def test_each_command_of_the_device_by_which_operators_act_is_on_the_command_line():
    assert {action.command for action in ACTIONS.values()} == set(OF_THE_DEVICE)


@pytest.mark.parametrize("killed", [False, True])
def test_an_action_that_was_sent_twice_as_nobody_confirmed_it_counts_once(bench, server, killed):
    """A comment was shown twice: readers are to go by its id (seed 1795500419 of the simulation)."""
    bench.alert()
    bench.action("COMMENT", id="one", comment="seen")
    server.cycle()
    if killed:
        server = bench.server()
    bench.action("COMMENT", id="one", comment="seen")
    bench.action("COMMENT", id="two", comment="and gone")
    server.cycle()
    told = [json.loads(entry)["action"]["id"] for _, entry in server.flow.log.since(0, 10) if b'"action"' in entry]
    assert (told, server.flow.actions) == (["one", "two"], 2)


@pytest.mark.parametrize(
    "error", [SystemExit(1), OSError(28, "No space left on device")], ids=["reader gone", "disk full"]
)
def test_follow_ends_when_nobody_takes_what_it_prints(monkeypatch, error):
    class Subscription:
        """Gives an alert, as `AlertSubscription` does: in a thread, and errors of the callback end nothing."""

        place = 7

        def __init__(self, name, on_entry, **_):
            one = {"condition": "a", "source": "b", "severity": "ALARM", "state": "ACTIVE", "text": ""}
            self.thread = Thread(
                target=self.give, args=[on_entry, FollowedAlert(sequence=8, previous=7, time=1.0, alert=one)]
            )
            self.thread.start()

        def give(self, on_entry, entry):
            with suppress(BaseException):
                on_entry(entry)

        def close(self):
            self.thread.join()

    class Clock(ManualClock):
        def sleep(self, seconds):
            super().sleep(seconds)
            assert self.monotonic() < 60, "it goes on"

    monkeypatch.setattr(alert_subscription, "AlertSubscription", Subscription)
    monkeypatch.setattr(alert_commands, "SystemClock", lambda: Clock(0.0))
    monkeypatch.setattr(alert_commands.OUT, "print", Mock(side_effect=error))
    done = CliRunner().invoke(app, ["alerts", "follow", "--tango-host", "db:10000"])
    assert (done.exit_code, type(done.exception)) == (1, type(error))
