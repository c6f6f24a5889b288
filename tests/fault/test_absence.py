"""What is missing at a start or goes away: clear words, answers all the same, and recovery without a hand (rule 8).

How soon the answers come is measured by `make bench`: reads, outage.
"""

import pytest
import tango

from facade.flows.telemetry.simulator.ingest import HeapReport
from tests.conftest import Deploy
from tests.support.deployment import BUS, ICD, MASTER, Deployment, await_totals, node_device
from tests.support.processes import standing_still
from tests.support.waiting import until

pytestmark = [pytest.mark.kafka, pytest.mark.tango]


def all_can_be_read(deployment: Deployment, devices: tuple[str, ...]) -> None:
    """Read everything: a call that waited for the bus would end only with its client's time-out."""
    for device in devices:
        proxy = deployment.proxy(device)
        for call in (proxy.state, proxy.status, proxy.ping):
            call()
        found = proxy.read_attributes(proxy.get_attribute_list())
        assert [one.name for one in found if one.has_failed] == [], device


def write_mode(deployment: Deployment, label: str) -> None:
    deployment.proxy(MASTER).write_attribute("adminMode", ICD.enums["AdminMode"].index(label))


def mode(deployment: Deployment) -> str:
    value = deployment.read_one(MASTER, "adminMode")
    return "unknown" if value is None else ICD.enums["AdminMode"][value]


@pytest.mark.slow
def test_the_broker_is_away_at_the_start(deploy: Deploy) -> None:
    """With no broker a device server answers each read, and says what is wrong; a worker keeps trying. Once the broker
    is there both name the topics that are missing, and the command that makes them; then they work. SIGTERM ends them
    with exit code 0, also with no broker to say goodbye to."""
    deployment = deploy(nodes=2, prepare=False)
    deployment.register()
    broker = deployment.broker
    broker.kill()
    worker = deployment.worker()
    servers = deployment.serve()
    until(lambda: "broker" in deployment.proxy(BUS).status(), "SdpBus says that no broker answers")
    all_can_be_read(deployment, (MASTER, BUS, node_device(0)))
    until(lambda: deployment.read_one(BUS, "connected") is False, "it is not connected")
    until(lambda: deployment.proxy(BUS).state() == tango.DevState.ALARM, "which is an alarm")
    assert deployment.quality(node_device(0), "heapsTotal") == "INVALID"
    assert mode(deployment) == "unknown", "what was set before the start is not known yet"
    assert deployment.proxy(MASTER).state() == tango.DevState.UNKNOWN
    with pytest.raises(tango.DevFailed, match="not reached yet"):
        write_mode(deployment, "OFFLINE")
    until(lambda: "it is not known yet where" in worker.text, "the worker says that it tries")

    broker.start()
    missing = f"{deployment.prefix}snapshots does not exist; create it with `sdp-facade topics create`"
    until(lambda: missing in (deployment.read_one(BUS, "lastError") or ""), "lastError names the topic")
    until(lambda: deployment.read_one(BUS, "connected") is True, "connected")
    worker.says(f"{deployment.prefix}ingest.heaps")
    deployment.command("topics", "create")
    report = deployment.simulate("--rate", 500, "--seconds", 2).finish()
    await_totals(deployment, report)
    until(lambda: mode(deployment) == "ONLINE", "the mode is known")
    assert worker.text.count("Traceback") == 0

    a_broker_that_hangs(deployment, report)

    broker.kill()
    until(lambda: deployment.read_one(BUS, "connected") is False, "the broker is missed")
    processes = (worker, *servers.values())
    for process in processes:  # each waits for the broker for seconds
        process.ask()
    for process in processes:
        assert process.exit_code() == 0, process.tail()


def a_broker_that_hangs(deployment: Deployment, before: HeapReport) -> None:
    """While the broker hangs (stopped, not dead) every read is answered, a change of adminMode is refused, window
    values become INVALID, and SdpBus finds out; then all goes on and is exact."""
    simulation = deployment.simulate("--rate", 500, name="while-it-hangs")
    until(lambda: deployment.quality(node_device(0), "heapRate") == "VALID", "values come")
    while_the_broker_hangs(deployment)
    report = simulation.stop()
    sent = sum(one.expected.used + one.expected.late for one in (before, report))

    def all_arrived() -> bool:
        totals = deployment.totals()
        return (totals["master/heapsTotal"], totals["ingestHeapsBalance"]) == (sent, 0)

    until(all_arrived, "everything arrived once")


def while_the_broker_hangs(deployment: Deployment) -> None:
    until(lambda: deployment.read_one(BUS, "connected") is True, "connected")
    until(lambda: mode(deployment) == "ONLINE", "the mode is known")
    with standing_still(deployment.broker.pid):
        with pytest.raises(tango.DevFailed, match=r"was not (sent|confirmed)") as refused:
            write_mode(deployment, "OFFLINE")
        assert "adminMode OFFLINE" in str(refused.value)
        until(lambda: deployment.quality(node_device(0), "heapRate") == "INVALID", "INVALID in silence")
        all_can_be_read(deployment, (MASTER, BUS, node_device(0)))
        until(lambda: deployment.read_one(BUS, "connected") is False, "SdpBus finds out")
        all_can_be_read(deployment, (MASTER, BUS, node_device(0)))
    until(lambda: deployment.read_one(BUS, "connected") is True, "connected again")
    until(lambda: deployment.quality(node_device(0), "heapRate") == "VALID", "values come again")
