"""The account of a demo's commands: whatever is lost, doubled, late or told differently is found, and named."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from facade.controller.simulator.controller import ExecutionLine
from facade.files import write_json
from facade.flows.commands.arguments import Arguments
from facade.flows.commands.messages import AckMessage, AckStatus, CommandMessage
from facade.icd.load import load
from proving.demo.command_account import CommandsFound, HistoryEntry, compare_commands, timeline, wrong_commands
from proving.demo.journal import Given, Journal, read_journal
from proving.demo.plan import OBSERVATION, TRANSITIONAL, Step, place, remedy
from proving.demo.report import DemoReport, Kill
from proving.demo.tables import print_accounts, print_commands

ICD = load()
COMMANDS = {command.name: command for command in ICD.classes["SdpSubarray"].commands}
DEVICE = "mid-sdp/subarray/01"
US = 1_000_000


def given(name: str, id: str, **changed: object) -> Given:
    values = {"device": DEVICE, "name": name, "id": id, "called": 100.0, "calls": 1, "took": 0.002, "reached": 101.0}
    return Given(**{**values, "path": ["A", "B"], **changed})


def command(name: str, id: str) -> CommandMessage:
    return CommandMessage(
        id=id,
        device=DEVICE,
        command=name,
        argument=None,
        transaction_id="txn-demo-20261121-01",
        issued=100 * US,
        not_after=105 * US,
        deadline=110 * US,
        ceiling=160 * US,
        repeatable=COMMANDS[name].repeatable,
        origin="subarray",
    )


def ack(name: str, id: str, status: AckStatus, time: int = 101) -> AckMessage:
    return AckMessage(id=id, device=DEVICE, command=name, status=status, time=time * US, origin="controller")


def execution(name: str, id: str, at: int = 100, again: bool = False) -> ExecutionLine:
    repeatable = COMMANDS[name].repeatable
    return ExecutionLine(
        id=id, command=name, device=DEVICE, begun_at=at * US, not_after=105 * US, repeatable=repeatable, again=again
    )


NAMES = {"1": "On", "2": "Configure", "3": "Off"}
FOUND = CommandsFound(
    given=[given(name, id) for id, name in NAMES.items()],
    commands=[command(name, id) for id, name in NAMES.items()],
    acks=[ack(name, id, status) for id, name in NAMES.items() for status in ("ACCEPTED", "COMPLETED")],
    histories={DEVICE: [HistoryEntry(id, "COMPLETED") for id in NAMES]},
    executions=[execution(name, id) for id, name in NAMES.items()],
)


def test_when_all_agree_there_is_no_failure() -> None:
    assert all(line.agrees for line in compare_commands(FOUND))
    assert wrong_commands(FOUND) == []


@pytest.mark.parametrize(
    ("part", "change", "says"),
    [
        ("commands", lambda all: all[:1] + all[2:], "2: expected it on the topic commands, got nothing"),
        ("commands", lambda all: [*all, command("Scan", "9")], "9: expected that TM gave it, as it is on the topic"),
        (
            "acks",
            lambda all: [one for one in all if one.id != "2"],
            "2: expected one outcome on command-acks, got none",
        ),
        ("acks", lambda all: [*all, ack("Configure", "2", "TIMED_OUT")], "got COMPLETED, TIMED_OUT"),
        ("histories", lambda all: {DEVICE: all[DEVICE][1:]}, "1: GetCommandHistory: expected COMPLETED, got none"),
        (
            "histories",
            lambda all: {DEVICE: [HistoryEntry("1", "FAILED"), *all[DEVICE][1:]]},
            "1: GetCommandHistory: expected COMPLETED, got FAILED",
        ),
        ("histories", lambda all: {DEVICE: [*all[DEVICE], HistoryEntry("9", "SENT")]}, "9: expected that TM gave it"),
        ("executions", lambda all: all[1:], "1: COMPLETED, but the controller never began it"),
        ("executions", lambda all: [*all, all[1]], "2: expected one execution, got several"),
        (
            "executions",
            lambda all: [execution("On", "1", at=106), *all[1:]],
            "1: expected no execution after not_after",
        ),
    ],
)
def test_one_thing_wrong_is_named(part: str, change: Callable[..., object], says: str) -> None:
    found = msgspec.structs.replace(FOUND, **{part: change(getattr(FOUND, part))})
    failures = wrong_commands(found)
    assert any(says in failure for failure in failures), failures
    assert all(failure.startswith(f"{DEVICE}: ") for failure in failures)
    assert not all(line.agrees for line in compare_commands(found))


def test_the_word_of_a_controller_behind_the_deadline_is_late_and_no_second_outcome() -> None:
    """It was killed; a busy machine started it again behind the command's deadline."""
    late = [ack("Configure", "2", "TIMED_OUT"), ack("Configure", "2", "REJECTED", time=109)]
    found = msgspec.structs.replace(
        FOUND,
        acks=[*(one for one in FOUND.acks if one.id != "2"), *late],
        histories={DEVICE: [HistoryEntry(id, "TIMED_OUT" if id == "2" else "COMPLETED") for id in NAMES]},
        executions=[one for one in FOUND.executions if one.id != "2"],
    )
    assert wrong_commands(found) == []
    assert all(line.agrees for line in compare_commands(found))
    found = msgspec.structs.replace(found, acks=[*found.acks, ack("Configure", "2", "FAILED", time=110)])
    assert any("got TIMED_OUT, REJECTED, FAILED" in failure for failure in wrong_commands(found))


def test_a_call_that_was_refused_as_undelivered_is_none_that_nobody_gave() -> None:
    """On a busy machine no broker took it in time; TM gave it again, and the account named the id of the first try."""
    told = [*FOUND.histories[DEVICE], HistoryEntry("0", "UNDELIVERED")]
    found = msgspec.structs.replace(FOUND, histories={DEVICE: told})
    assert wrong_commands(found) == []
    assert all(line.agrees for line in compare_commands(found))
    for other in (
        msgspec.structs.replace(found, commands=[*FOUND.commands, command("On", "0")]),  # it was delivered all the same
        msgspec.structs.replace(found, given=[*FOUND.given, given("On", "0")]),  # TM was given its id
    ):
        assert any("0: " in failure for failure in wrong_commands(other))


def test_an_outcome_that_is_repeated_and_a_command_that_is_begun_again_are_well() -> None:
    found = msgspec.structs.replace(
        FOUND,
        acks=[*FOUND.acks, ack("On", "1", "COMPLETED", time=109)],
        executions=[*FOUND.executions, execution("On", "1", at=107, again=True)],
    )
    assert wrong_commands(found) == []
    assert all(line.agrees for line in compare_commands(found))


@pytest.mark.parametrize(
    "all_given",
    [[], FOUND.given[:2], [*FOUND.given[:2], given("Off", "3", reached=None)]],
    ids=["nothing", "not-off", "off-not-reached"],
)
def test_an_observation_that_does_not_get_to_its_end_is_a_failure(all_given: list[Given]) -> None:
    found = msgspec.structs.replace(FOUND, given=all_given)
    assert any("expected the observation to get to its end" in failure for failure in wrong_commands(found))


def test_a_refusal_is_a_failure_with_its_text() -> None:
    refused = given("Scan", "", refusals=["API_CommandNotAllowed: not allowed when obsState is IDLE"])
    found = msgspec.structs.replace(FOUND, given=[*FOUND.given[:2], refused, FOUND.given[2]])
    assert wrong_commands(found) == [
        f"{DEVICE}: Scan: was refused: API_CommandNotAllowed: not allowed when obsState is IDLE"
    ]
    assert timeline(found)[2].text.startswith("API_CommandNotAllowed")


def test_the_story_of_a_command() -> None:
    first, *_ = timeline(FOUND)
    assert (first.name, first.durable, first.begun, first.executions) == ("On", 0.002, 1.0, 1)
    assert (first.outcome, first.ended, first.path) == ("COMPLETED", 101.0, ("A", "B"))


def test_the_report_shows_the_kills_among_the_commands_and_what_differs() -> None:
    found = msgspec.structs.replace(
        FOUND,
        commands=FOUND.commands[:2],
        acks=[*FOUND.acks[:3], msgspec.structs.replace(ack("Configure", "2", "FAILED"), text="interrupted: killed")],
    )
    report = DemoReport(began=90.0, nodes=1, rate=1.0, seconds=1.0, commands=timeline(found))
    report.kills.append(Kill(102.0, "controller"))
    report.command_account = compare_commands(found)
    console = Console(record=True, width=120, file=io.StringIO())
    print_commands(console, report)
    text = console.export_text()
    for part in (
        "10.0",
        "FAILED, interrupted",
        "A → B",
        "12.0",
        "kill -9 controller",
        "no outcome",
        "2 (3)",
        "DIFFERS",
    ):
        assert part in text
    assert text.index("interrupted") < text.index("kill -9")
    print_accounts(console, [], "every command")


def test_no_time_of_a_command_is_cut_off_beside_a_long_path() -> None:
    lines = [msgspec.structs.replace(line, path=("RESOURCING", "IDLE") * 8) for line in timeline(FOUND)[:2]]
    console = Console(record=True, width=120, file=io.StringIO())
    print_commands(console, DemoReport(began=90.0, nodes=1, rate=1.0, seconds=1.0, commands=lines))
    text = console.export_text()
    assert "10.0" in text
    assert "…" not in text


def test_the_journal_survives_its_file(tmp_path: Path) -> None:
    file = tmp_path / "journal.json"
    assert read_journal(file) == Journal()
    journal = Journal(given=[*FOUND.given], errors=["none"], finished=True)
    write_json(file, journal)
    assert read_journal(file) == journal


@pytest.mark.parametrize("step", OBSERVATION, ids=lambda step: step.command)
def test_the_plan_is_what_the_icd_allows(step: Step) -> None:
    command = COMMANDS[step.command]
    on, begins = ("OFF", "EMPTY") if step.begins == "OFF" else ("ON", step.begins)
    assert on in command.state
    assert not command.obs_state or begins in command.obs_state
    assert step.ends == command.targets[0] or (step.command, step.ends) == ("On", "EMPTY")
    assert (step.argument is None) == (command.argument is None)
    if step.argument is not None and command.argument is not None:
        document = step.argument(16, 7, "20261121") | {"transaction_id": "txn-demo-20261121-160007"}
        assert Arguments(ICD).check(command.argument, json.dumps(document)).transaction_id == "txn-demo-20261121-160007"


def test_each_step_begins_where_the_one_before_it_ends() -> None:
    assert [step.begins for step in OBSERVATION[1:]] == [step.ends for step in OBSERVATION[:-1]]
    labels = set(ICD.enums["ObsState"])
    assert TRANSITIONAL - {"UNKNOWN"} == {label for label in labels if label.endswith("ING")} - {"SCANNING"}


@pytest.mark.parametrize(
    ("failed", "shown", "way_out", "goes_on_with"),
    [
        ("AssignResources", "FAULT", "Restart", "AssignResources"),
        ("Configure", "FAULT", "ObsReset", "Configure"),
        ("Scan", "FAULT", "ObsReset", "Configure"),
        ("Scan", "READY", None, "Scan"),
        ("End", "ABORTED", "ObsReset", "Configure"),
        ("ReleaseAllResources", "FAULT", "ObsReset", "ReleaseAllResources"),
        ("Off", "EMPTY", None, "Off"),
    ],
)
def test_after_a_failure_the_plan_goes_on_where_the_subarray_is(
    failed: str, shown: str, way_out: str | None, goes_on_with: str
) -> None:
    at = next(i for i, step in enumerate(OBSERVATION) if step.command == failed)
    found = remedy(shown, OBSERVATION[at])
    assert (found and found.command) == way_out
    if found is not None:
        assert shown in COMMANDS[found.command].obs_state
        assert found.ends == COMMANDS[found.command].targets[0]
    after = place(found.ends if found else shown, OBSERVATION, at)
    assert after is not None
    assert OBSERVATION[after].command == goes_on_with
    assert place("FAULT", OBSERVATION, at) is None
