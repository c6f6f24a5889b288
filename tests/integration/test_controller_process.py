"""The reference controller as a process on a real broker: what is on the bus after it was killed."""

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from facade.flows.commands.outcomes import FINAL
from facade.kernel.bus.kafka.bus import KafkaBus
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.clock import SystemClock
from facade.kernel.config import Settings
from facade.kernel.icd.load import load
from facade.kernel.runtime.composition import Server
from tests.support import topics
from tests.support.arguments import example
from tests.support.commanding import Sink
from tests.support.deployment import Deployment
from tests.support.processes import Running
from tests.support.waiting import until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

TRACE = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
FIRST, SECOND, MASTER = "mid-sdp/subarray/01", "mid-sdp/subarray/02", "mid-sdp/control/0"
REPEATABLE = {"On", "Off", "ReleaseResources", "ReleaseAllResources", "EndScan", "End", "Abort", "ObsReset", "Restart"}
RESOURCES = example("assignres", "1.0")


class Sdp:
    """The commands' side of the bus, seen by plain Kafka clients."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment

    def controller(self, *options: str, name: str = "controller") -> Running:
        """Start the reference controller, and wait until it has its devices."""
        return self.deployment.controller("--subarrays", "2", *options, log=name)

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Serve the subarrays, without Tango: a device server admits orders."""
        settings = Settings(bootstrap=self.deployment.bootstrap, prefix=self.deployment.prefix, subarrays=2)
        bus = KafkaBus(Connection(settings, clock=SystemClock()), client="subarray")
        devices, clock, stop = {"SdpSubarray": [FIRST, SECOND]}, SystemClock(), threading.Event()
        server = Server(load(), settings, devices, Sink(), bus, instance="subarray", clock=clock, versions={})
        thread = threading.Thread(target=server.event_loop.run, args=[stop], daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(20)

    def send(self, name: str, device: str = FIRST, argument: Any = None) -> dict[str, Any]:
        now = time.time_ns() // 1000
        command = {
            "schema": "command/1",
            "id": f"{now / 1e6:.6f}_{uuid.uuid4().int % 10**12:012d}_{name}",
            "device": device,
            "command": name,
            "argument": argument,
            "transaction_id": "txn-test-20261121-00001",
            "issued": now,
            "not_after": now + 300_000_000,
            "deadline": now + 300_000_000,
            "ceiling": now + 600_000_000,
            "repeatable": device == MASTER or name in REPEATABLE,
            "origin": "test",
        }
        record = (device.encode(), json.dumps(command).encode())
        headers, topic = (("traceparent", TRACE),), self.deployment.topic("commands")
        topics.send(self.deployment.bootstrap, topic, [record], headers=headers, settings=topics.ORDER)
        return command

    def read(self, topic: str) -> list[dict[str, Any]]:
        return [json.loads(message.value()) for message in self.deployment.messages(topic)]

    def outcome(self, command: dict[str, Any]) -> dict[str, Any]:
        """Wait for the first outcome."""
        acks = lambda: (ack for ack in self.read("command-acks") if ack["id"] == command["id"])  # noqa: E731
        what = f"an outcome of {command['command']}"
        return until(lambda: next((ack for ack in acks() if ack["status"] in FINAL), None), what)

    def do(self, name: str, device: str = FIRST, argument: Any = None) -> dict[str, Any]:
        """Send a command and wait until it has completed."""
        command = self.send(name, device, argument)
        outcome = self.outcome(command)
        assert outcome["status"] == "COMPLETED", outcome
        return command

    def orders(self) -> list[dict[str, Any]]:
        """All orders that were admitted, each once; one that was written twice is the same."""
        return list({one["id"]: one for one in self.read("commands") if one.get("parent")}.values())

    def state(self, device: str = FIRST) -> dict[str, str]:
        return {one["attribute"]: one["value"] for one in self.read("state") if one["device"] == device}


@pytest.fixture
def sdp(deploy: Callable[..., Deployment], tmp_path: Path) -> Sdp:
    deployment = deploy(prepare=False, tango_host="none:1")
    deployment.create_topics()
    return Sdp(deployment)


def test_a_second_controller_of_another_group_is_refused(sdp: Sdp) -> None:
    """One of the same name takes the place of the first one, which ends with a message that says why."""
    first = sdp.controller()
    until(lambda: sdp.read("heartbeats"), "the first one has said that it lives")
    stranger = ["sdp-facade", "simulate", "controller", "--subarrays", "2", "--name", "stranger"]
    second = sdp.deployment.start("stranger", stranger)
    assert second.exit_code() == 1, "the devices are those of one that is alive"
    assert "is alive" in second.text
    assert first.running
    successor = sdp.controller(name="successor")
    assert first.exit_code() == 1
    assert "another process has joined group" in first.text
    assert "--name" in first.text
    command = sdp.do("On")
    assert [one["id"] for one in sdp.deployment.executions()] == [command["id"]]
    successor.kill()
    sdp.controller("--name", "stranger", name="stranger-again")
    sdp.do("Off")


def test_orders_go_down_to_the_worker_through_a_kill(sdp: Sdp) -> None:
    """SDP's On switches both subarrays on; a Configure comes to the worker, although the controller between is killed
    when it has given its order and nobody has answered it: one order a hop, one outcome each, one trace."""
    with sdp.serving():
        follow_orders(sdp)


def follow_orders(sdp: Sdp) -> None:
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
    traced = {dict(message.headers() or ())["traceparent"] for message in sdp.deployment.messages("commands")}
    assert traced == {TRACE}
    shown = json.loads(sdp.deployment.command("commands", "show", configure["id"], "--json"))
    assert shown["trace"] == "0af7651916cd43dd8448eb211c80319c"
    assert [one["id"] for one in (*shown["orders"], *shown["orders"][0]["orders"])] == list(orders)
    assert all(one["outcome"] == "COMPLETED" for one in (shown, *shown["orders"], *shown["orders"][0]["orders"]))
