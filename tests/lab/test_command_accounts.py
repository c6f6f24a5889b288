"""The accounts of commands find each kind of wrong: in fault runs, in the demo, and through accidents of brokers."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import msgspec
import pytest
from rich.console import Console

from facade.flows.alerts.messages import Alert
from facade.flows.commands.messages import AckMessage, CommandMessage, ack_record, command_record
from facade.kernel.clock import ManualClock
from facade.kernel.errors import InfraError
from facade.sdk.controller.simulator.controller import ExecutionLine
from sdp_facade_lab.balance import Balance
from sdp_facade_lab.command_account import Answer, CallLine, FoundCommands, account
from sdp_facade_lab.demo.command_account import calls, compare_orders, families, timeline, unfinished
from sdp_facade_lab.demo.plan import Given
from sdp_facade_lab.demo.report import DemoReport, print_commands
from sdp_facade_lab.fault_runs import frame
from sdp_facade_lab.fault_runs.alerts import digest
from sdp_facade_lab.fault_runs.cluster import ClusterRun
from sdp_facade_lab.fault_runs.frame import Size
from sdp_facade_lab.fault_runs.rolling import wrong_alerts

DEVICE, ID = "mid-sdp/subarray/01", "1800000000.000000_1_Scan"
T0 = 1_800_000_000_000_000


def call(**changes) -> CallLine:
    fields = {"device": DEVICE, "command": "Scan", "called": T0 / 1e6, "seconds": 0.002, "answer": "given", "id": ID}
    return CallLine(**fields | changes)


def command(**changes) -> CommandMessage:
    fields = {
        "id": ID,
        "device": DEVICE,
        "command": "Scan",
        "argument": None,
        "transaction_id": "txn",
        "issued": T0,
        "not_after": T0 + 2_000_000,
        "deadline": T0,
        "ceiling": T0,
        "repeatable": False,
        "origin": "server",
    }
    return CommandMessage(**fields | changes)


def ack(status: str = "COMPLETED", **changes) -> AckMessage:
    fields = {"id": ID, "device": DEVICE, "command": "Scan", "time": T0, "origin": "controller"}
    return AckMessage(status=status, **fields | changes)


def execution(**changes) -> ExecutionLine:
    fields = {"id": ID, "command": "Scan", "device": DEVICE, "begun_at": T0, "not_after": T0 + 2_000_000}
    return ExecutionLine(**fields | {"repeatable": False, "again": False} | changes)


GOOD = {
    "calls": [call()],
    "commands": [command()],
    "acks": [ack("ACCEPTED"), ack()],
    "shown": {ID: "COMPLETED"},
    "executions": [execution()],
}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"commands": []}, "told that it is on the bus, and it is not"),
        ({"calls": [call(answer="not sent")]}, "told that it is not on the bus, and it is"),
        ({"calls": []}, "no caller was told of"),
        ({"calls": [call(answer="unknown")], "commands": [], "shown": {ID: "COMPLETED"}}, "is not on the bus, and is"),
        ({"acks": [ack("ACCEPTED")]}, "has no outcome"),
        ({"shown": {ID: "FAILED"}}, "the log says COMPLETED, the device FAILED"),
        ({"executions": [execution(), execution()]}, "must not be repeated, and was executed 2 times"),
        ({"executions": []}, "COMPLETED and was never executed"),
        ({"acks": [ack("REJECTED")], "shown": {ID: "REJECTED"}}, "is REJECTED and was executed"),
        ({"acks": [ack(), ack("FAILED")]}, "its controller has said COMPLETED and FAILED"),
        ({"executions": [execution(begun_at=T0 + 2_500_000)]}, "begun 0.500 s after its not_after"),
    ],
)
def test_each_kind_of_wrong_is_found(changes, words):
    (finding,) = account(FoundCommands(**GOOD | changes)).wrong
    assert words in finding


LOG = [
    Alert(
        condition="storageLow", source=source, severity="ALARM", state="ACTIVE", text="", raised_at=T0, sequence=number
    )
    for source, number in (("simulated-000", 1), ("facade", 1), ("simulated-000", 2))
]
RECEIVED = [(number, digest(one)) for number, one in enumerate(LOG, 1)]
AGAIN, STRANGE = (msgspec.structs.replace(LOG[0], sequence=number) for number in (1, 1_800_000_000_000_001))


@pytest.mark.parametrize(
    ("sent", "received", "says"),
    [
        ({"simulated-000": 2}, RECEIVED, ""),
        ({"simulated-000": 2}, [*RECEIVED, (4, b"came later")], ""),
        ({"simulated-000": 3}, RECEIVED, "simulated-000: 3 alerts sent, 2 on the log"),
        ({"simulated-000": 1}, RECEIVED, "1 alerts sent, 2 on the log, 0 of them twice, 1 that the source did not"),
        ({"simulated-000": 2}, RECEIVED[:2], "not the 3 of the log"),
        ({"simulated-000": 2}, [*RECEIVED, RECEIVED[2]], "not the 3 of the log"),
        ({"simulated-000": 2}, [RECEIVED[0], (2, b"another"), RECEIVED[2]], "not the 3 of the log"),
    ],
)
def test_alerts_of_a_rolling_upgrade_are_those_that_were_sent(sent, received, says):
    found = wrong_alerts(sent, LOG, received, ())
    assert len(found) == bool(says)
    assert all(says in one for one in found)
    for one, what in ((AGAIN, "1 of them twice, 0 that"), (STRANGE, "0 of them twice, 1 that")):
        (found_one,) = wrong_alerts({"simulated-000": 2}, [*LOG, one], [*RECEIVED, (4, digest(one))], ())
        assert what in found_one
    assert wrong_alerts({}, LOG, RECEIVED, ["numbers 7 to 9"]) == ["the client was told of a loss: numbers 7 to 9"]


def test_a_command_that_was_given_up_and_is_there_after_all_is_wrong_only_if_it_was_executed():
    """The device server told the caller that the record never came: it had not read it yet."""
    calls = [
        call(answer="unknown"),
        call(answer="refused", again=True, text=f"command {ID} of this transaction_id never"),
    ]
    given_up = GOOD | {"calls": calls, "acks": [ack("UNDELIVERED"), ack("TIMED_OUT")], "shown": {ID: "UNDELIVERED"}}
    assert account(FoundCommands(**given_up | {"executions": []})).wrong == []
    told, done = account(FoundCommands(**given_up)).wrong
    assert "told that it is not on the bus, and it is" in told
    assert done == f"{ID}: is UNDELIVERED and was executed"


def told(name: str, id: str, **changed: object) -> Given:
    values = {
        "device": DEVICE,
        "name": name,
        "id": id,
        "called": T0 / 1e6,
        "calls": 1,
        "took": 0.002,
        "reached": T0 / 1e6 + 1,
    }
    return Given(**{**values, "path": ["A", "B"], **changed})


NAMES = {"1": "On", "2": "Configure", "3": "Off"}
TOLD = [told(name, id) for id, name in NAMES.items()]
GONE_WELL = FoundCommands(
    calls=calls(TOLD),
    commands=[command(id=id, command=name) for id, name in NAMES.items()],
    acks=[ack(status, id=id, command=name) for id, name in NAMES.items() for status in ("ACCEPTED", "COMPLETED")],
    shown=dict.fromkeys(NAMES, "COMPLETED"),
    executions=[execution(id=id, command=name) for id, name in NAMES.items()],
)


def test_an_observation_that_stopped_half_way_is_named() -> None:
    assert unfinished(TOLD, {DEVICE: "Off"}) == []
    assert unfinished(TOLD[:2], {DEVICE: "Off"}) == [
        f"{DEVICE}: expected the observation to get to its end, got to Configure"
    ]


def test_no_time_of_a_command_is_cut_off_beside_a_long_path() -> None:
    lines = [msgspec.structs.replace(line, path=("RESOURCING", "IDLE") * 8) for line in timeline(TOLD, GONE_WELL)[:2]]
    console = Console(record=True, width=120, file=io.StringIO())
    print_commands(console, DemoReport(began=T0 / 1e6 - 10.0, nodes=1, rate=1.0, seconds=1.0, commands=lines))
    text = console.export_text()
    assert "10.0" in text
    assert "…" not in text


MASTER, ONE, TWO = "mid-sdp/control/0", "mid-sdp/subarray/01", "mid-sdp/subarray/02"
PROCESSING, WORKER = "mid-sdp/processing/01", "mid-sdp/worker/01"


def order(id: str, device: str, parent: str = "") -> CommandMessage:
    return command(id=id, device=device, command=id.split("_")[1], parent=parent)


def acks(message: CommandMessage, *statuses: str) -> list[AckMessage]:
    about = {"id": message.id, "device": message.device, "command": message.command}
    return [ack(status, **about) for status in ("ACCEPTED", *statuses)]


ORDERS = [
    order("1_On", MASTER),
    order("2_On", ONE, "1_On"),
    order("3_On", TWO, "1_On"),
    order("4_Configure", ONE),
    order("5_Prepare", PROCESSING, "4_Configure"),
    order("6_Load", WORKER, "5_Prepare"),
]
ROOTS = ["1_On", "4_Configure"]
ANSWERS = [ack for one in ORDERS for ack in acks(one, "COMPLETED")]


def family(commands: Sequence[CommandMessage] = ORDERS, said: Sequence[AckMessage] = ANSWERS) -> FoundCommands:
    executions = [execution(id=one.id, command=one.command, device=one.device) for one in ORDERS]
    given = [Given(device=one.device, name=one.command, called=100.0, id=one.id) for one in commands if not one.parent]
    shown = {one.id: "COMPLETED" for one in commands}
    return FoundCommands(calls=calls(given), commands=commands, acks=said, shown=shown, executions=executions)


def wrong(all_: FoundCommands) -> list[str]:
    records = [command_record(one) for one in all_.commands], [ack_record(one) for one in all_.acks]
    lines, texts = compare_orders(families(ROOTS, *records), all_, 2)
    return [*(str(line) for line in lines if not line.agrees), *texts]


def without(id: str) -> list[CommandMessage]:
    return [one for one in ORDERS if one.id != id]


def ended(id: str, *statuses: str) -> list[AckMessage]:
    return [ack for one in ORDERS for ack in acks(one, *(statuses if one.id == id else ("COMPLETED",)))]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda: family(without("3_On")), "control: subarrays that followed On: expected 2, got 1"),
        (lambda: family(without("6_Load")), "subarray: Configure that came down to a worker: expected 1, got 0"),
        (lambda: family(said=ended("2_On")), "subarray: with an outcome on command-acks: expected 2, got 1"),
        (
            lambda: family(said=ended("5_Prepare", "COMPLETED", "FAILED")),
            "processing: 5_Prepare: its controller has said COMPLETED and FAILED",
        ),
        (
            lambda: family([*ORDERS, order("7_Load", WORKER, "x")]),
            "orders: below a command of TM: expected 5, got 4",
        ),
    ],
)
def test_one_thing_wrong_is_named(change: Callable[[], FoundCommands], says: str) -> None:
    assert wrong(family()) == []
    assert any(text.startswith(says) for text in wrong(change())), wrong(change())


class _Flow:
    """Goes on for as many steps as are left."""

    def __init__(self, folder: Path, left: int) -> None:
        self.deployment, self.left, self.arrived = SimpleNamespace(folder=folder), left, 0

    def count_arrived(self) -> int:
        return self.arrived

    def step(self) -> bool:
        self.left -= 1
        return self.left > 0

    def stop_sending(self) -> None:
        self.left = 0

    def account(self) -> Balance:
        return Balance()


@pytest.fixture
def run(tmp_path: Path) -> ClusterRun:
    """Return a run whose commands stand still."""
    made = ClusterRun(MagicMock(clock=ManualClock(), folder=tmp_path), Size(3, 0), 1)
    made._all = {"commands": _Flow(tmp_path, 2), "alerts": _Flow(tmp_path, 1_000)}
    made._goes_on = dict(made._all)
    return made


def test_a_flow_that_ends_before_the_last_accident_is_a_finding(run: ClusterRun) -> None:
    """It sends nothing through the accidents that are left, and its account balances."""
    assert [run.step() for _ in range(5)] == [True] * 5
    run._schedule.clear()
    assert not run.step()
    assert run.account().wrong == ["commands: ended before the last accident"]


def test_the_next_accident_waits_until_each_flow_goes_on(run: ClusterRun) -> None:
    """Otherwise a silence would have several accidents as its cause, and could be as long as they follow each other."""
    clock, flows = run.clock, run._all
    flows["commands"].left = 1_000
    run._happens = MagicMock(done=lambda: True)
    flows["commands"].arrived = flows["alerts"].arrived = 7
    assert not run.due(), "as nothing has arrived since the last one was over"
    due = []
    for name in flows:
        clock.sleep(2.0)
        flows[name].arrived += 1
        due.append(bool(run.due()))
    assert due == [False, True]
    run._happens = MagicMock(done=lambda: True)
    assert not run.due()
    clock.sleep(601.0)
    with pytest.raises(InfraError, match=r"nothing of commands, alerts has arrived for 600 s"):
        run.due()


def test_a_cluster_has_its_jars_before_its_process_loses_the_network(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On a machine that never ran Kafka, Maven could not be reached from the network of the run's own."""
    order: list[str] = []

    class Ended(Exception):
        pass

    def take_network() -> None:
        order.append("network")
        raise Ended

    monkeypatch.setattr(frame, "libraries", lambda report: order.append("jars"))
    monkeypatch.setattr(ClusterRun, "before", take_network)
    with pytest.raises(Ended):
        frame.prove("cluster", folder=tmp_path)
    assert order == ["jars", "network"]


def made_line(seconds: float, answer: Answer, text: str = "no broker") -> CallLine:
    return CallLine(device="d", command="Scan", called=5.0, seconds=seconds, answer=answer, text=text)


def test_an_act_that_nobody_could_confirm_or_that_is_forbidden_is_a_finding_if_it_was_taken(run: ClusterRun) -> None:
    run.injected["kill"] = 1
    run._alone, run._acts = [(1.0, 10.0)], [made_line(0.1, "given", "")]
    run._forbidden = [("logs", "write to x.alerts", "TOPIC_AUTHORIZATION_FAILED"), ("storage", "write to y", "done")]
    assert run.account().wrong == [
        ": was given, and no two brokers could confirm it",
        "storage may not write to y: done",
    ]
    assert not run.injected, "accidents have a table of their own"


@pytest.mark.parametrize(("seconds", "again", "count"), [(0.9, False, 1), (1.1, False, 0), (0.9, True, 0)])
def test_a_command_that_brokers_may_have_confirmed_was_rightly_given(
    run: ClusterRun, seconds: float, again: bool, count: int
) -> None:
    """They are back before a long call ends, and a repeated one returns the id of a record confirmed before."""
    line = msgspec.structs.replace(made_line(seconds, "given", ""), again=again)
    file = run._all["commands"].deployment.folder / "calls.jsonl"
    file.write_bytes(msgspec.json.encode(line) + b"\n")
    run._alone = [(1.0, 6.0)]
    assert len(run.account().wrong) == count
