"""The reference controller as a process on a real broker: what is on the bus after it was killed."""

import json
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message

from tests.support import topics
from tests.support.deployment import Deployment
from tests.support.processes import Running
from tests.support.waiting import until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

SIMULATE = ["sdp-facade", "simulate", "controller", "--speed", "20"]
FIRST, SECOND, MASTER = "mid-sdp/subarray/01", "mid-sdp/subarray/02", "mid-sdp/control/0"
FINAL = {"COMPLETED", "FAILED", "ABORTED", "REJECTED"}
REPEATABLE = {"On", "Off", "ReleaseResources", "ReleaseAllResources", "EndScan", "End", "Abort", "ObsReset", "Restart"}
RESOURCES = {
    "interface": "https://schema.skao.int/ska-sdp-assignres/1.0",
    "resources": {"receptors": ["SKA001", "SKA002"]},
    "execution_block": {
        "eb_id": "eb-test-20261121-00001",
        "beams": [{"beam_id": "vis0", "function": "visibilities"}],
        "scan_types": [
            {"scan_type_id": ".default", "beams": {"vis0": {"channels_id": "all"}}},
            {"scan_type_id": "target:a", "derive_from": ".default"},
        ],
        "channels": [
            {
                "channels_id": "all",
                "spectral_windows": [
                    {"spectral_window_id": "low", "count": 8192, "start": 0, "freq_min": 3.5e8, "freq_max": 4e8}
                ],
            }
        ],
    },
}


class Sdp:
    """The commands' side of the bus, seen by plain Kafka clients."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._bootstrap = deployment.bootstrap
        self.report = deployment.folder / "executions.jsonl"

    def controller(self, *options: str, name: str = "controller") -> Running:
        """Start the reference controller, and wait until it has its devices."""
        before = self._deployment.folder.joinpath(f"{name}.log")
        seen = before.read_text().count("partitions assigned") if before.exists() else 0
        process = self.launch(name, *options)
        until(lambda: process.text.count("partitions assigned") > seen, "the controller has its partitions")
        return process

    def launch(self, name: str, *options: str) -> Running:
        return self._deployment.start(name, [*SIMULATE, "--subarrays", "2", "--report", str(self.report), *options])

    def send(self, name: str, device: str = FIRST, argument: Any = None, *, within: float = 300.0) -> dict[str, Any]:
        command = self.command(name, device, argument, within=within)
        self.put(command)
        return command

    def command(self, name: str, device: str, argument: Any = None, *, within: float = 300.0) -> dict[str, Any]:
        now = time.time_ns() // 1000
        return {
            "schema": "command/1",
            "id": f"{now / 1e6:.6f}_{uuid.uuid4().int % 10**12:012d}_{name}",
            "device": device,
            "command": name,
            "argument": argument,
            "transaction_id": "txn-test-20261121-00001",
            "issued": now,
            "not_after": now + round(within * 1e6),
            "deadline": now + 300_000_000,
            "ceiling": now + 600_000_000,
            "repeatable": device == MASTER or name in REPEATABLE,
            "origin": "test",
        }

    def put(self, *commands: dict[str, Any]) -> None:
        records = [(command["device"].encode(), json.dumps(command).encode()) for command in commands]
        headers = (("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),)
        self.write("commands", records, headers=headers, settings={"partitioner": "murmur2_random"})

    def write(self, topic: str, records: list[tuple[bytes | None, bytes | None]], **options: Any) -> None:
        topics.send(self._bootstrap, self._deployment.topic(topic), records, **options)

    def read(self, topic: str) -> list[Message]:
        return topics.read_all(self._bootstrap, self._deployment.topic(topic))

    def acks(self, command: dict[str, Any]) -> list[dict[str, Any]]:
        return self.all_acks()[command["id"]]

    def all_acks(self) -> dict[str, list[dict[str, Any]]]:
        found: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for message in self.read("command-acks"):
            ack = json.loads(message.value())
            found[ack["id"]].append(ack)
        return found

    def outcome(self, command: dict[str, Any]) -> dict[str, Any]:
        what = f"an outcome of {command['command']}"
        return until(lambda: next((a for a in self.acks(command) if a["status"] in FINAL), None), what)

    def do(self, name: str, device: str = FIRST, argument: Any = None) -> dict[str, Any]:
        """Send a command and wait until it has completed."""
        command = self.send(name, device, argument)
        outcome = self.outcome(command)
        assert outcome["status"] == "COMPLETED", outcome
        return command

    def show(self, command: dict[str, Any]) -> dict[str, Any]:
        return dict(json.loads(self._deployment.command("commands", "show", command["id"], "--json")))

    def orders(self) -> list[dict[str, Any]]:
        """All commands that controllers have given, each once; one that was written twice is the same."""
        found = [json.loads(message.value()) for message in self.read("commands")]
        return list({one["id"]: one for one in found if one.get("parent")}.values())

    def executions(self) -> Counter[str]:
        if not self.report.exists():
            return Counter()
        return Counter(json.loads(line)["id"] for line in self.report.read_text().splitlines())

    def state(self, device: str = FIRST) -> dict[str, str]:
        found = [json.loads(message.value()) for message in self.read("state")]
        return {one["attribute"]: one["value"] for one in found if one["device"] == device}


@pytest.fixture
def sdp(deploy: Callable[..., Deployment], tmp_path: Path) -> Sdp:
    deployment = deploy(prepare=False, tango_host="none:1")
    deployment.create_topics()
    return Sdp(deployment)


def test_a_second_controller_of_another_group_is_refused(sdp: Sdp) -> None:
    """One of the same name takes the place of the first one, which ends with a message that says why."""
    first = sdp.controller()
    until(lambda: sdp.read("heartbeats"), "the first one has said that it lives")
    second = sdp.launch("stranger", "--name", "stranger")
    assert second.exit_code() == 1, "the devices are those of one that is alive"
    assert "is alive" in second.text
    assert first.running
    successor = sdp.controller(name="successor")
    assert first.exit_code() == 1
    assert "another process has joined group" in first.text
    assert "--name" in first.text
    command = sdp.do("On")
    assert sdp.executions()[command["id"]] == 1
    successor.kill()
    sdp.controller("--name", "stranger", name="stranger-again")
    sdp.do("On")


def test_orders_go_down_to_the_worker_through_a_kill(sdp: Sdp) -> None:
    """SDP's On switches both subarrays on; a Configure comes to the worker, although the controller between is killed
    when it has given its order and nobody has answered it: one order a hop, one outcome each, one trace."""
    sdp.controller("--orders", "--only", "SdpMaster", "--only", "SdpSubarray", name="sdp")
    on = sdp.do("On", MASTER)
    assert [one["command"] for one in sdp.orders()] == ["On", "On"]
    assert {one["parent"] for one in sdp.orders()} == {on["id"]}
    assert sdp.state(FIRST)["State"] == sdp.state(SECOND)["State"] == sdp.state(MASTER)["State"] == "ON"
    sdp.do("AssignResources", argument=RESOURCES)

    processing = sdp.controller("--orders", "--only", "ProcessingController", "--name", "processing", name="processing")
    configure = sdp.send("Configure", argument={"scan_type": "target:a"})
    until(lambda: len(sdp.orders()) == 4, "the order for the worker is on the bus")
    processing.kill()
    sdp.controller("--only", "ProcessingWorker", "--name", "worker", name="worker")
    again = ("--orders", "--only", "ProcessingController", "--name", "processing")
    sdp.controller(*again, name="processing-again")
    assert sdp.outcome(configure)["status"] == "COMPLETED"
    assert sdp.state()["obsState"] == "READY"
    # In the order of their times: they are on several partitions.
    later = sorted(sdp.orders(), key=lambda one: one["issued"])[2:]
    orders = {one["id"]: one for one in later}
    assert [(one["command"], one["device"], one["parent"]) for one in orders.values()] == [
        ("Prepare", "mid-sdp/processing/01", configure["id"]),
        ("Load", "mid-sdp/worker/01", next(iter(orders))),
    ]
    for order in orders.values():
        assert sdp.outcome(order)["status"] == "COMPLETED"
        assert order["deadline"] <= configure["deadline"]
    traced = {dict(message.headers() or ())["traceparent"] for message in sdp.read("commands")}
    assert traced == {b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    shown = sdp.show(configure)
    assert shown["trace"] == "0af7651916cd43dd8448eb211c80319c"
    assert [one["id"] for one in (*shown["orders"], *shown["orders"][0]["orders"])] == list(orders)
    assert all(one["outcome"] == "COMPLETED" for one in (shown, *shown["orders"], *shown["orders"][0]["orders"]))
