"""Past commands by the bus alone: `commands list` and `commands show`."""

import json
from dataclasses import replace

import msgspec
import pytest
from typer.testing import CliRunner

from facade.flows.commands import cli
from facade.flows.commands.messages import (
    AckMessage,
    CommandMessage,
    RefusalMessage,
    ack_record,
    command_id,
    command_record,
    held_record,
    refusal_record,
    unapproved_record,
)
from facade.flows.commands.past import Past, chosen, outcome_of
from facade.kernel.bus.dead_letters import dead_letter
from facade.kernel.bus.port import Record
from facade.kernel.cli.app import app
from facade.kernel.errors import BusError, ConfigError
from facade.kernel.outcome import RecordRejected

NOW_US = 1_800_000_000_000_000
MASTER, WORKER = "mid-sdp/control/0", "mid-sdp/worker/01"
TRACEPARENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
ONE, TWO = "mid-sdp/subarray/01", "mid-sdp/subarray/02"


class Topics:
    """What stands on the two topics, with the reader's functions in its place."""

    def __init__(self):
        names = ("commands-held", "commands", "command-acks", "command-refusals", "dead-letters")
        self.records = {name: [] for name in names}

    def put(self, record, at_us):
        records = self.records[record.topic]
        records.append(msgspec_replace(record, offset=len(records), timestamp_us=at_us))

    def command(self, ago, name="Configure", device=ONE, headers=(), given_after=0.0, **more):
        at = NOW_US - round(ago * 1e6)
        id = command_id(at, len(self.records["commands"]), name)
        message = CommandMessage(
            id=id, device=device, command=name, argument=more.pop("argument", {"a": 1}), transaction_id="t", issued=at,
            not_after=at + 1, deadline=at + 2, ceiling=at + 3, repeatable=False, origin="subarray", **more,
        )  # fmt: skip
        self.put(command_record(message, headers), at + round(given_after * 1e6))
        return id

    def held(self, ago):
        """Put a command that waits for a second person, and return its message."""
        at = NOW_US - round(ago * 1e6)
        message = CommandMessage(
            id=command_id(at, 99, "Restart"), device=ONE, command="Restart", argument=None, transaction_id="t",
            issued=at, not_after=at + 60_000_000, deadline=at + 60_000_000, ceiling=at + 60_000_000, repeatable=False,
            origin="subarray", operator="ann",
        )  # fmt: skip
        self.put(held_record(message), at)
        return message

    def approval(self, held, ago):
        at = NOW_US - round(ago * 1e6)
        self.put(command_record(msgspec.structs.replace(held, issued=at, not_after=at, approver="ben")), at)

    def ack(self, id, status, *, device=ONE, after=1.0, **more):
        at = round(float(id.partition("_")[0]) * 1e6) + round(after * 1e6)
        name = id.rpartition("_")[2]
        made = unapproved_record if "withdrawer" in more else ack_record
        self.put(made(AckMessage(id=id, device=device, command=name, status=status, time=at, **more)), at)

    def refusal(self, ago, name="Configure", device=ONE, **more):
        message = RefusalMessage(
            device=device, command=name, reason="API_CommandNotAllowed", text="not allowed", origin="subarray",
            time=NOW_US - round(ago * 1e6), **more,
        )  # fmt: skip
        self.put(refusal_record(message), message.time)

    def find_range(self, connection, topic, *, since):
        found = [one.offset for one in self.records[topic] if one.timestamp_us >= since]
        return {0: (found[0], found[-1] + 1)} if found else {}

    def read_range(self, connection, topic, span):
        for begin, end in span.values():
            yield from self.records[topic][begin:end]


def msgspec_replace(record, **more):
    return Record(topic=record.topic, key=record.key, value=record.value, headers=record.headers, **more)


@pytest.fixture
def topics(monkeypatch):
    made = Topics()
    monkeypatch.setattr(cli, "find_range", made.find_range)
    monkeypatch.setattr(cli, "read_range", made.read_range)
    monkeypatch.setattr(cli, "Connection", lambda *_, **__: None)
    monkeypatch.setattr(cli.SystemClock, "now_us", lambda self: NOW_US)
    return made


@pytest.fixture
def night(topics):
    """Return the ids of commands with all kinds of ends."""
    ids = {}
    for number, status in enumerate(("COMPLETED", "FAILED", "REJECTED", "TIMED_OUT", "")):
        ids[status or "OPEN"] = id = topics.command(600 - number)
        topics.ack(id, "ACCEPTED", origin="c")
        if status:
            topics.ack(id, status, after=2.0, origin="c", text="why not")
    ids["two"] = topics.command(60, "Scan", TWO)
    topics.ack(ids["two"], "FAILED", device=TWO, origin="c")
    ids["old"] = topics.command(172_800)
    topics.ack(ids["old"], "FAILED", after=7100, origin="c")
    ids["lost"] = command_id(NOW_US - 30_000_000, 99, "On")
    topics.ack(ids["lost"], "UNDELIVERED", origin="subarray")
    return ids


@pytest.fixture
def cascade(topics):
    """Return the ids of a command with two orders: one was written twice, one has no outcome."""
    ids = {"On": topics.command(100, "On", MASTER, headers=((("traceparent", TRACEPARENT),)))}
    for device, after in ((TWO, 2.5), (ONE, 2.0)):
        ids[device] = topics.command(100, "On", device, parent=ids["On"], given_after=after)
    message = topics.records["commands"][-1]
    topics.put(message, NOW_US - 90_000_000)
    topics.ack(ids[ONE], "COMPLETED", after=2.25, origin="c")
    topics.ack(ids["On"], "FAILED", device=MASTER, after=4.0, origin="c", text="not all followed")
    return ids


def test_a_refused_command_is_in_the_list_with_who_gave_it_and_why(night, topics):
    topics.refusal(300, "Scan", client="10.0.0.7, process 4242", operator="ann")
    topics.refusal(200, device=TWO)
    topics.refusal(172_800)
    topics.put(Record(topic="command-refusals", key=b"x", value=b"{"), NOW_US)
    printed = run("list --outcome REFUSED")
    assert "2 commands of the last 1d, times in UTC: 2 REFUSED" in printed
    lines = [line.strip() for line in printed.splitlines()]
    assert lines[0].split()[2:] == ["subarray/01", "Scan", "REFUSED"]
    assert lines[1] == "by ann, from 10.0.0.7, process 4242: not allowed"
    assert lines[3] == "not allowed"
    shown = json.loads(run("list --json"))
    assert (shown["counts"]["REFUSED"], shown["unreadable"]) == (2, 1)
    (one,) = json.loads(run("list --json --command Scan --subarray 1"))["commands"]
    assert (one["id"], one["outcome"], one["seconds"]) == ("", "REFUSED", None)
    assert (one["client"], one["operator"]) == ("10.0.0.7, process 4242", "ann")
    assert "REFUSED" not in run("list --outcome FAILED")


def test_who_gave_a_command_is_shown(topics):
    client = "10.0.0.7, process 4242"
    for said, who in (({}, client), ({"operator": "ann"}, f"ann, from {client}")):
        id = topics.command(100, client=client, **said)
        assert f"{id} by {who}" in run("list")
        assert f"issued by subarray, given by {who}" in run(f"show {id}")
        assert json.loads(run(f"show {id} --json"))["command"].items() >= {"client": client, **said}.items()


def test_a_command_that_was_asked_for_before_the_time_and_approved_within_it_has_its_outcome(topics):
    held = topics.held(3700)
    topics.approval(held, 3590)
    topics.ack(held.id, "COMPLETED", after=112.0, origin="c")
    (one,) = json.loads(run("list --since 1h --json"))["commands"]
    assert (one["id"], one["outcome"], one["seconds"]) == (held.id, "COMPLETED", 2.0)


def test_a_command_that_waits_for_a_second_person_is_shown_until_and_after_its_approval(topics):
    held = topics.held(50)
    printed = run(f"show {held.id}")
    assert printed.splitlines()[0].split() == [held.id, "OPEN"]
    assert "given by ann" in printed
    assert "latest time for the approval by a second person" in printed
    assert "latest time to begin" not in printed
    assert json.loads(run(f"show {held.id} --json"))["held"]
    topics.approval(held, 20)
    printed = run(f"show {held.id}")
    assert "given by ann, approved by ben" in printed
    assert "latest time to begin" in printed
    assert not json.loads(run(f"show {held.id} --json"))["held"]


def test_a_withdrawal_beside_an_approval_is_no_outcome(topics):
    held = topics.held(50)
    topics.ack(held.id, "ABORTED", after=1, withdrawer="ann", origin="subarray")
    assert run(f"show {held.id}").splitlines()[0].split()[:2] == [held.id, "ABORTED"]
    topics.approval(held, 40)
    assert run(f"show {held.id}").splitlines()[0].split()[:2] == [held.id, "OPEN"]
    topics.ack(held.id, "COMPLETED", after=20, origin="c")
    assert run(f"show {held.id}").splitlines()[0].split()[:2] == [held.id, "COMPLETED"]
    (one,) = json.loads(run("list --json"))["commands"]
    assert one["outcome"] == "COMPLETED"


def test_a_command_is_shown_with_its_orders_and_theirs(cascade, topics):
    below = topics.command(100, "Prepare", WORKER, parent=cascade[TWO], given_after=3.0)
    topics.ack(below, "FAILED", device=WORKER, after=3.5, origin="w", text="no memory")
    printed = run(f"show {cascade['On']}")
    assert f"trace {TRACEPARENT[3:35].decode()}" in printed
    lines = printed[printed.index("orders") :].splitlines()
    assert [line.strip("│├└─ ") for line in lines[2:7:2]] == [cascade[ONE], cascade[TWO], below]
    assert f"{ONE} On COMPLETED after 0.25 s by c" in lines[1]
    assert f"{TWO} On OPEN" in lines[3]
    assert f"{WORKER} Prepare FAILED after 0.50 s by w: no memory" in lines[5]
    assert lines[5].index("└") > lines[3].index("└")
    shown = json.loads(run(f"show {cascade['On']} --json"))
    assert shown["trace"] == TRACEPARENT[3:35].decode()
    assert [(one["command"]["device"], one["outcome"]) for one in shown["orders"]] == [
        (ONE, "COMPLETED"),
        (TWO, "OPEN"),
    ]
    assert [one["id"] for one in shown["orders"][1]["orders"]] == [below]
    assert shown["orders"][0]["seconds"] == pytest.approx(0.25)


def test_an_order_is_shown_with_its_parent(cascade):
    printed = run(f"show {cascade[ONE]}")
    assert f"an order of {cascade['On']}" in printed
    assert "orders," not in printed


def test_orders_of_each_other_come_to_an_end(topics):
    """Only a wrong program writes them."""
    ids = [command_id(NOW_US - 10_000_000, number, "On") for number in range(3)]
    for parent in (ids[1], ids[0], ids[2]):
        topics.command(10, "On", TWO, parent=parent)
    assert json.loads(run(f"show {ids[1]} --json"))["orders"][0]["id"] == ids[0]
    assert sorted(listed("")) == ids
    assert run("list").count("OPEN") == 3 + 1  # and the sum


def test_a_list_has_orders_below_their_command(cascade):
    found = json.loads(run("list --json"))["commands"]
    assert {one["id"]: one["parent"] for one in found if one["parent"]}[cascade[ONE]] == cascade["On"]
    lines = [line for line in run("list --command On").splitlines() if " On " in line]
    assert [line.split()[2:4] for line in lines] == [["control/0", "On"], ["subarray/01", "└"], ["subarray/02", "└"]]
    assert "└" not in run(f"list --device {ONE}")


def run(words, code=0):
    done = CliRunner().invoke(app, ["commands", *words.split()], env={"COLUMNS": "200"}, catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done.output


def listed(words):
    return [one["id"] for one in json.loads(run(f"list {words} --json"))["commands"]]


def test_a_command_that_the_interface_lacks_is_named(night):
    assert "--command: the interface has no 'configure', but Abort, " in run("list --command configure")
    assert "no " not in run("list --command Configure")


def test_each_command_has_its_outcome_in_the_order_of_time(night):
    found = json.loads(run("list --json"))
    wanted = ["COMPLETED", "FAILED", "REJECTED", "TIMED_OUT", "OPEN", "two", "lost"]
    assert [one["id"] for one in found["commands"]] == [night[one] for one in wanted]
    assert found["counts"] == {
        "COMPLETED": 1, "FAILED": 2, "REJECTED": 1, "TIMED_OUT": 1, "UNDELIVERED": 1, "OPEN": 1,
    }  # fmt: skip
    assert found["commands"][0]["seconds"] == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("--outcome FAILED", ["FAILED", "two"]),
        ("--outcome FAILED --subarray 1", ["FAILED"]),
        ("--subarray 2", ["two"]),
        ("--device mid-sdp/subarray/02", ["two"]),
        ("--outcome OPEN --outcome UNDELIVERED", ["OPEN", "lost"]),
        ("--command Scan", ["two"]),
        ("--since 90s", ["two", "lost"]),
        ("--since 3d --outcome FAILED --subarray 1", ["old", "FAILED"]),
        ("--since 10s", []),
        ("--limit 1", ["lost"]),
    ],
)
def test_they_are_chosen_by_time_device_name_and_outcome(night, words, names):
    assert listed(words) == [night[one] for one in names]


def test_a_list_for_people_says_why_and_how_many(night):
    printed = run("list --limit 3")
    assert printed.count("mid-sdp") == 0
    assert "subarray/02" in printed
    assert "why not" not in printed
    assert "UNDELIVERED" in printed
    assert "7 commands of the last 1d, times in UTC: 1 COMPLETED, 2 FAILED" in printed
    assert "the newest 3 are shown, --limit shows more" in printed
    assert f"{night['FAILED']}: why not" in run("list")


def test_a_list_for_people_has_the_beginning_of_each_argument_in_a_line(night, topics):
    topics.command(1, "AssignResources", argument={"resources": {"receptors": [f"SKA{one:03}" for one in range(300)]}})
    *_, argument = [line for line in run("list").splitlines() if line.startswith("    {")]
    assert argument.startswith('    {"resources":{"receptors":["SKA000","SKA001"')
    assert (len(argument), argument[-1]) == (180, "…")  # the width of a pipe


def test_who_asks_for_more_than_the_topic_keeps_is_told_so(topics):
    assert "the topic keeps commands for 7 d" in run("list --since 30d")


def test_an_acknowledgement_that_device_servers_have_set_aside_is_not_shown(topics):
    id = topics.command(60)
    topics.ack(id, "FAILED", origin="somebody")
    (forged,) = topics.records["command-acks"]
    why = RecordRejected("signature", "headers.signature", "expected the signature of a controller, got none")
    for one in (forged, replace(forged, topic="state", offset=1)):
        topics.put(dead_letter(one, why, by="subarray"), forged.timestamp_us)
    topics.ack(id, "COMPLETED", origin="c", after=2.0)
    assert "COMPLETED" in run("list")
    assert [one["origin"] for one in json.loads(run(f"show {id} --json"))["acknowledgements"]] == ["c"]


def test_an_acknowledgement_under_another_device_is_not_shown(topics):
    id = topics.command(60)
    topics.ack(id, "FAILED", device="mid-sdp/subarray/02", origin="somebody")
    topics.ack(id, "COMPLETED", origin="c", after=2.0)
    assert [one["origin"] for one in json.loads(run(f"show {id} --json"))["acknowledgements"]] == ["c"]


def test_one_is_shown_with_its_argument_and_who_acknowledged_when(night, topics):
    topics.ack(night["FAILED"], "COMPLETED", after=3.0, origin="another")
    printed = run(f"show {night['FAILED']}").splitlines()
    assert printed[0].split() == [night["FAILED"], "FAILED"]
    assert any("ACCEPTED by c" in one for one in printed)
    assert any(one.endswith("FAILED by c: why not") for one in printed)
    assert any("COMPLETED by another  after the outcome" in one for one in printed)
    assert '"a": 1' in "\n".join(printed)
    found = json.loads(run(f"show {night['FAILED']} --json"))
    assert [one["status"] for one in found["acknowledgements"]] == ["ACCEPTED", "FAILED", "COMPLETED"]
    assert (found["outcome"], found["command"]["argument"]) == ("FAILED", {"a": 1})


def test_one_that_never_got_to_the_bus_is_shown_by_what_was_said_of_it(night):
    printed = run(f"show {night['lost']}")
    assert "its own record is not on the topic commands, which keeps commands for 7 d" in printed
    assert "UNDELIVERED by subarray" in printed


def test_one_whose_id_is_ahead_of_its_record_is_found(topics):
    """Its device server's clock was set back by an hour."""
    id = topics.command(60, given_after=-3600.0)
    topics.ack(id, "COMPLETED", after=-3599.0, origin="c")
    assert run(f"show {id}").splitlines()[0].split() == [id, "COMPLETED"]
    assert json.loads(run(f"show {id} --json"))["seconds"] == 1.0
    assert json.loads(run("list --json"))["commands"][0]["seconds"] == 1.0


def test_one_that_is_not_there_is_an_error(night):
    with pytest.raises(BusError, match=r"no command .* on the bus, which keeps commands for 7 d"):
        run("show 1700000000.000000_000000000001_On")


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("list --outcome failed", "--outcome: expected one of ABORTED.*got 'failed'"),
        ("list --since yesterday", "--since: expected a duration"),
        ("show x", "ID: expected an id such as"),
        ("show 1e300_1_On", "ID: expected an id such as"),
    ],
)
def test_a_wrong_call_says_what_was_expected(topics, words, what):
    with pytest.raises(ConfigError, match=what):
        run(words)


def test_records_that_are_none_are_counted_and_hide_no_neighbour(topics):
    topics.put(Record(topic="commands", key=b"x", value=b"{"), NOW_US - 1)
    topics.put(Record(topic="command-acks", key=b"x", value=b"[]"), NOW_US - 1)
    id = topics.command(1.0)
    assert listed("") == [id]
    assert json.loads(run("list --json"))["unreadable"] == 2


@pytest.mark.parametrize(
    ("statuses", "outcome"),
    [
        (("ACCEPTED", "REJECTED"), "REJECTED"),
        (("ACCEPTED", "IN_PROGRESS", "REJECTED"), "OPEN"),
        (("IN_PROGRESS", "REJECTED", "FAILED"), "FAILED"),
        (("IN_PROGRESS", "UNDELIVERED"), "OPEN"),
    ],
)
def test_a_list_and_one_command_have_the_outcome_of_the_table(topics, statuses, outcome):
    id = topics.command(60)
    for after, status in enumerate(statuses, 1):
        topics.ack(id, status, after=float(after), origin="c")
    (row,) = json.loads(run("list --json"))["commands"]
    assert (row["outcome"], json.loads(run(f"show {id} --json"))["outcome"]) == (outcome, outcome)


def test_the_first_outcome_holds_whoever_gives_another_later():
    past, made = Past(0), Topics()
    id = made.command(10)
    for status in ("FAILED", "COMPLETED"):
        made.ack(id, status, origin="c")
    for record in made.records["commands"]:
        past.add_command(record)
    for record in made.records["command-acks"]:
        past.add_ack(record)
    assert [outcome_of(one) for one in chosen(past.commands())] == ["FAILED"]
