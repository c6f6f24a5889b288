"""The demo's operator: a call that was not confirmed in time may have been done, and is not done twice."""

from types import SimpleNamespace
from typing import Any

import pytest
import tango

from proving.demo.alerting import AlertScenario


def failed(answer: str) -> tango.DevFailed:
    reason, _, text = answer.partition(": ")
    with pytest.raises(tango.DevFailed) as raised:
        tango.Except.throw_exception(reason, text, "")
    return raised.value


def act(*answers: str) -> tuple[set[str], list[str]]:
    """Shelve an alarm, with an id or the reason of a refusal for each call; give the ids and what was printed."""
    left, steps = list(answers), []

    def ask(_: object) -> str:
        answer = left.pop(0)
        if answer.startswith("API_"):
            raise failed(answer)
        return answer

    scenario: Any = SimpleNamespace(_ask=ask, _actions=set(), _progress=SimpleNamespace(step=steps.append))
    AlertScenario._act(scenario, "Shelve", "coolantWarm", "cooling/2")
    assert not left
    return scenario._actions, steps


def test_an_action_that_was_not_confirmed_is_tried_again() -> None:
    assert act("1") == ({"1"}, [])
    ids, steps = act("API_CommandTimedOut", "API_CommandTimedOut", "3")
    assert (ids, len(steps)) == ({"3"}, 2)


def test_one_that_was_not_sent_is_tried_again() -> None:
    ids, steps = act("API_CommandFailed: the record for alerts was not sent: no broker took it", "2")
    assert (ids, len(steps)) == ({"2"}, 1)


def test_one_that_had_been_done_all_the_same_is_no_failure() -> None:
    ids, steps = act("API_CommandTimedOut", "API_CommandNotAllowed")
    assert (ids, steps[-1]) == (set(), "Shelve had been done all the same")


def test_a_refusal_of_the_first_try_is_a_failure() -> None:
    for reason in ("API_CommandNotAllowed", "API_CommandFailed"):
        with pytest.raises(tango.DevFailed):
            act(reason)
