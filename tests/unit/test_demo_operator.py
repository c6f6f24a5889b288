"""The demo's operator: a call that was not confirmed in time may have been done, and is not done twice."""

from types import SimpleNamespace
from typing import Any

from proving.demo.flows import _SOURCES, AlarmScenario, FollowedAlert

DONE = {("SHELVE", "coolantWarm", "cooling/2")}


def test_an_action_counts_once_whichever_of_its_tries_was_done() -> None:
    """The first try had been done, and nobody was told its id; the second became a dead letter."""
    action = {"id": "first", "action": "SHELVE", "condition": "coolantWarm", "source": "cooling/2"}
    other = {**action, "id": "another", "operator": "anna", "comment": ""}
    entries = [
        FollowedAlert(sequence=number, previous=number - 1, time=0.0, action={**one, "comment": ""})
        for number, one in enumerate(({**action, "operator": "demo operator"}, other), 1)
    ]
    report = SimpleNamespace(failures=[])
    scenario: Any = SimpleNamespace(
        _demo=SimpleNamespace(report=report), _name="alerts", _actions=DONE, _lost=[], entries=entries,
        _sent=dict.fromkeys(_SOURCES, 0), _state=lambda *_: "",
    )  # fmt: skip
    AlarmScenario.account(scenario)
    (line,) = (one for one in report.alert_account if one.what.startswith("actions"))
    assert (line.expected, line.found) == (1, 1)


def tidied(*alarms: tuple[str, str, str], shelved: bool = True) -> tuple[list[tuple[str, str]], list[str]]:
    """Tidy up, with these alarms (condition, source, state) once nothing is active any more; give actions and steps."""
    done: list[tuple[str, str]] = []
    steps: list[str] = []
    found = [{"condition": condition, "source": source, "state": state} for condition, source, state in alarms]
    scenario: Any = SimpleNamespace(
        _clear=lambda condition, *_: done.append(("clear", condition)),
        _state=lambda *_: "SHLVD" if shelved else "NORM",
        _act=lambda command, condition, *_, **__: done.append((command, condition)),
        _progress=SimpleNamespace(wait_until=lambda condition, *_: 1.0 if condition() else None, step=steps.append),
        _in=lambda wanted: [one for one in found if one["state"] in wanted],
    )
    AlarmScenario.tidy_up(scenario)
    return done, steps


def test_a_demo_that_stays_begins_without_an_alarm() -> None:
    """Alarms of its own story, which latched or were shelved, let `status` report DEGRADED for ever."""
    done, steps = tidied(("storageLow", "buffer/0", "LTUNK"), ("deadLetters", "sdp-facade/ingest.heaps", "RTNUN"))
    assert done == [
        ("clear", "coolantWarm"),
        ("clear", "pipelineFailed"),
        ("Unshelve", "coolantWarm"),
        ("Reset", "storageLow"),
        ("Acknowledge", "deadLetters"),
    ]
    assert steps == ["alerts: no alarm is left"]
