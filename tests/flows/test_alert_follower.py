"""A client's order of alerts: an empty memory, a log that was made anew, what cannot be read, and lines of entries."""

import json

import msgspec
import pytest
from rich.text import Text

from facade.flows.alerts.follower import Follower
from facade.flows.alerts.operator_api import OperatorApi
from tests.support.alerting import Bench


def event(sequence: int, previous: int | None = None) -> str:
    before = sequence - 1 if previous is None else previous
    return json.dumps({"sequence": sequence, "previous": before, "time": 1.5, "alert": {"text": f"no. {sequence}"}})


def page(newest: int, *sequences: int) -> str:
    return json.dumps({"newest": newest, "entries": [json.loads(event(one)) for one in sequences]})


def numbers(entries) -> list[int]:
    return [entry.sequence for entry in entries]


def test_an_empty_memory_is_no_new_log():
    follower = Follower(10)
    assert follower.add_page(10, page(0)) == []
    assert (follower.seen, follower.made_anew) == (10, 0)


def test_a_log_that_was_made_anew_is_noticed_and_given_from_its_beginning():
    follower = Follower(10)
    follower.take(event(20))
    follower.announce(3)
    assert follower.missing() == 10
    assert follower.add_page(10, page(3)) == []
    assert (follower.made_anew, follower.missing()) == (1, 0)
    assert numbers(follower.add_page(0, page(3, 1, 2, 3))) == [1, 2, 3]
    assert follower.missing() is None
    assert follower.add_page(10, page(10, 4)) == [], "asked of the old log"


def test_what_nobody_has_any_more_can_be_given_up():
    follower = Follower(0)
    follower.take(event(8))
    assert numbers(follower.skip(7)) == [8]
    assert follower.missing() is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"sequence":"x"}', '{"sequence":1}', "\ud800"])
def test_what_cannot_be_read_is_counted_and_disturbs_nothing(text):
    follower = Follower(0)
    assert follower.take(text) == []
    assert follower.unusable == 1
    assert numbers(follower.take(event(1))) == [1]


def test_an_answer_that_cannot_be_read_is_an_error():
    with pytest.raises(msgspec.MsgspecError):
        Follower(0).add_page(0, "{}")


def test_it_follows_what_the_device_sends_and_leaves_out_a_refresh():
    bench = Bench()
    server = bench.server()
    for _ in range(3):
        bench.alert()
    server.cycle()
    server.acknowledge()
    server.service.find(OperatorApi).refresh()
    server.cycle()
    texts = [reading.value for _, name, reading in server.sink.pushed if name == "lastAlert"]
    follower = Follower(0)
    given = [entry for text in texts for entry in follower.take(text)]
    assert (numbers(given), follower.unusable) == ([1, 2, 3, 4], 0)
    assert given[-1].action["operator"] == "ann"
    fresh = Follower(0)
    assert fresh.add_page(0, server.service.find(OperatorApi).since(0)) == given


@pytest.mark.needs("sdp_facade_clients")
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (
            {"alert": {"severity": "ALARM", "state": "ACTIVE", "condition": "c", "source": "s", "text": "[red] 5 > 3"}},
            "       7  2023-11-15 13:46:40 UTC  ALARM    ACTIVE   c of s  [red] 5 > 3",
        ),
        (
            {
                "alert": {
                    "severity": "NEW",
                    "state": "CLEARED",
                    "condition": "c",
                    "source": "s",
                    "text": "a\n\x1b[2J!",
                }
            },
            "       7  2023-11-15 13:46:40 UTC  NEW      CLEARED  c of s  a\\u000a\\u001b[2J!",
        ),
        (
            {"action": {"action": "COMMENT", "condition": "c", "source": "s", "operator": "ann", "comment": "seen"}},
            "       7  2023-11-15 13:46:40 UTC  COMMENT           c of s  ann: seen",
        ),
    ],
)
def test_an_entry_is_a_line(content, says):
    from sdp_facade_clients.alert_commands import entry_line

    text = json.dumps({"sequence": 7, "previous": 6, "time": 1_700_056_000.5, **content})
    (entry,) = Follower(6).take(text)
    assert Text.from_markup(entry_line(entry)).plain == says
