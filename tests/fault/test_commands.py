"""What goes wrong on the way of a command, each fault by its name: none is lost, doubled or left without an outcome.

One device server with ten subarrays and one controller serve all tests; each test has subarrays of its own. No command
has a deadline: how fast a controller starts again decides nothing.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest
import tango

from facade.controller.simulator.controller import CRASHED
from facade.infra import local
from tests.support.deployment import Deployment
from tests.support.subarrays import Subarrays, id_in, standing_still
from tests.support.waiting import until

# In one group: they share a deployment.
pytestmark = [pytest.mark.kafka, pytest.mark.tango, pytest.mark.xdist_group("commands")]


@pytest.fixture(scope="module")
def subarrays(infra: local.Endpoints, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subarrays]:
    folder = tmp_path_factory.mktemp("commands")
    with Deployment(infra, folder, nodes=1, subarrays=10, patient=True) as deployment:
        deployment.prepare()
        yield Subarrays(deployment)


@pytest.mark.parametrize(
    ("moment", "name", "executions", "outcome", "obs_state"),
    [
        ("crash-before", "End", 2, "COMPLETED", "IDLE"),
        ("crash-after", "Configure", 1, "FAILED", "READY"),
    ],
    ids=lambda value: str(value),
)
def test_the_controller_dies(
    subarrays: Subarrays, moment: str, name: str, executions: int, outcome: str, obs_state: str
) -> None:
    """It dies before or after the effect: a repeatable command is executed again, another one has failed and says that
    nobody knows how far it came."""
    device = subarrays.take()
    controller = subarrays.controller(f"{moment}:{name}")
    id = subarrays.give(device, name)
    assert controller.exit_code() == CRASHED
    until(lambda: subarrays.told(device, id)["status"] in ("ACCEPTED", "IN_PROGRESS"), "it is under way")
    subarrays.controller(f"{moment}:{name}")
    told = subarrays.outcome(device, id)
    assert told["status"] == outcome, told
    assert outcome == "COMPLETED" or "interrupted" in told["text"]
    assert subarrays.executions(id) == executions
    subarrays.becomes(device, obs_state)


def test_the_device_server_is_killed_with_a_command_under_way(subarrays: Subarrays) -> None:
    """It comes back with the command, the state that the command leads through, and outcomes from before: of a command
    that ended meanwhile as well; each has the same id, and is executed once."""
    device, other = subarrays.take(), subarrays.take()
    subarrays.controller("hang:Configure", "slow:Scan")
    before = subarrays.does(device, "Scan")
    subarrays.does(device, "EndScan")
    hanging = subarrays.give(device, "Configure")
    until(lambda: subarrays.executions(hanging) == 1, "Configure is being executed")
    transaction = {"scan_id": 9, "transaction_id": "txn-test-20261121-00007"}
    ends_meanwhile = subarrays.give(other, "Scan", transaction)
    subarrays.kill_server()
    until(lambda: len(subarrays.written("command-acks", ends_meanwhile)) >= 2, "it ends while nobody listens")
    subarrays.start_server()
    assert subarrays.told(device, hanging)["status"] in ("ACCEPTED", "IN_PROGRESS")
    until(lambda: subarrays.read(device, "commandsPending") == 1, "Configure is pending")
    subarrays.becomes(device, "CONFIGURING")
    assert subarrays.told(device, before)["status"] == "COMPLETED"
    assert subarrays.outcome(other, ends_meanwhile)["status"] == "COMPLETED"
    subarrays.becomes(other, "SCANNING")
    assert subarrays.give(other, "Scan", transaction) == ends_meanwhile, "transaction ids are known as well"
    assert subarrays.executions(ends_meanwhile) == 1
    subarrays.does(device, "Abort")
    assert subarrays.outcome(device, hanging)["status"] == "ABORTED"


class SecondServer:
    """The same device server elsewhere: with another database, which cannot know of the first one."""

    def __init__(self, subarrays: Subarrays) -> None:
        deployment = subarrays.deployment
        host = deployment.database("another-db")
        deployment.command("register", TANGO_HOST=host)
        self.process = deployment.server("subarray", name="second", ready=False, TANGO_HOST=host)
        self._name = f"tango://{host}/{subarrays.devices[0]}"

    def call(self, name: str) -> str:
        """Return why a command is refused; an empty text: it is taken."""
        assert self.process.running, self.process.tail()
        try:
            self._proxy().command_inout(name)
        except tango.DevFailed as failed:
            return failed.args[0].desc
        return ""

    def obs_state(self) -> int | None:
        try:
            return self._proxy().obsState
        except tango.DevFailed:
            return None

    def _proxy(self) -> tango.DeviceProxy:
        made = tango.DeviceProxy(self._name)
        made.set_timeout_millis(30_000)
        return made


NEVER = "ObsReset"
"""A command that is not allowed in READY or SCANNING: what refuses it says whether the server may command."""


def test_a_second_device_server(subarrays: Subarrays) -> None:
    """The database refuses a second instance; one elsewhere notices the first by the bus and refuses to command, until
    the first has been silent for long enough; then it is the first that refuses when it comes back."""
    device = subarrays.devices[0]
    subarrays.controller()
    again = subarrays.deployment.start("again", ["SdpFacade", "subarray"])
    assert again.exit_code() != 0, "the Tango database has let it in"
    second = SecondServer(subarrays)
    alive = "another device server of the name SdpFacade-subarray is alive"
    until(lambda: alive in second.call(NEVER), "it refuses")
    until(lambda: second.obs_state() == 4, "it shows what the bus says, READY")
    subarrays.does(device, "Scan")
    subarrays.kill_server()
    until(lambda: "expected obsState" in second.call(NEVER), "it takes over: what it refuses is the state")
    until(lambda: not second.call("EndScan"), "it takes a command")
    subarrays.server = subarrays.deployment.server("subarray")
    until(lambda: "another device server" in subarrays.refusal(device, NEVER), "the first one refuses now")
    second.process.kill()
    subarrays.until_ready(device)
    subarrays.becomes(device, "READY")
    subarrays.does(device, "Configure")


@dataclass(frozen=True)
class Call:
    """A call that failed, and what its caller was told."""

    device: str
    transaction: str
    why: str


def call_in_vain(subarrays: Subarrays, device: str, number: int) -> Call:
    """Return a command while no broker answers: it fails."""
    transaction = f"txn-fault-20261121-{device[-2:]}x{number}x{os.urandom(3).hex()}"
    why = subarrays.refusal(device, "Scan", {"scan_id": 1, "transaction_id": transaction})
    return Call(device, transaction, why)


def judge(subarrays: Subarrays, calls: Sequence[Call]) -> Counter[str]:
    """See that what a failed call said is what the log says: what was not sent is not there, else the tracker knows."""
    kinds: Counter[str] = Counter()
    on_bus = [json.loads(message.value()) for message in subarrays.messages("commands")]
    for call in calls:
        written = [one["id"] for one in on_bus if one["transaction_id"] == call.transaction]
        if "outcome unknown" not in call.why:
            assert "was not sent" in call.why or "is under way" in call.why, call.why
            assert not written, f"{call}, and yet it is on the bus"
            kinds["not sent"] += 1
            continue
        id = id_in(call.why)
        told = subarrays.outcome(call.device, id)
        assert written in ([], [id])
        assert (told["status"] == "UNDELIVERED") == (not written), (told, written)
        assert subarrays.executions(id) == (told["status"] == "COMPLETED"), told
        kinds[f"unknown, then {told['status']}"] += 1
    return kinds


@pytest.mark.parametrize("how", ["stands still", "is killed"])
def test_the_broker_is_away(subarrays: Subarrays, how: str) -> None:
    """Every call answers with an error that says what is known; afterwards the bus and the device agree with
    it, and commands are taken again."""
    subarrays.controller()
    devices = [subarrays.take(), subarrays.take()]
    broker = subarrays.deployment.broker
    calls: list[Call] = []

    def lease_is_lost() -> bool:
        calls.extend(call_in_vain(subarrays, device, len(calls)) for device in devices)
        return all("heartbeats do not come back" in call.why for call in calls[-len(devices) :])

    if how == "stands still":
        with standing_still(broker.pid):
            until(lease_is_lost, "the server says that it cannot know whether it may command", every=0.3)
    else:
        broker.kill()
        try:
            until(lease_is_lost, "the server says that it cannot know whether it may command", every=0.3)
        finally:
            broker.start()
    subarrays.until_ready(devices[0])
    kinds = judge(subarrays, calls)
    print(dict(kinds))
    assert kinds["not sent"] >= len(devices)

    subarrays.give(devices[0], "Abort")  # commands are taken again
    subarrays.becomes(devices[0], "ABORTED")
