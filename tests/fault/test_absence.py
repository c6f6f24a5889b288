"""What is missing at a start or goes away: clear words, answers all the same, and recovery without a hand (rule 8).

How soon the answers come is measured by `make bench`: reads, outage.
"""

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import tango

import facade
from facade.infra.ports import choose_port
from tests.conftest import Deploy
from tests.support.deployment import BUS, ICD, MASTER, Deployment, expected_totals, node_device
from tests.support.events import Subscriber
from tests.support.waiting import until, until_equal

pytestmark = [pytest.mark.kafka, pytest.mark.tango]


def all_can_be_read(deployment: Deployment, devices: tuple[str, ...]) -> None:
    """Read everything: a call that waited for the bus would end only with its client's time-out."""
    for device in devices:
        proxy = deployment.proxy(device)
        calls = {"State": proxy.state, "Status": proxy.status, "ping": proxy.ping}
        for name in proxy.get_attribute_list():
            calls[name] = lambda proxy=proxy, name=name: proxy.read_attribute(name)
        for name, call in calls.items():
            try:
                call()
            except tango.DevFailed as failed:
                raise AssertionError(f"{device}/{name}") from failed


def write_mode(deployment: Deployment, label: str) -> None:
    deployment.proxy(MASTER).write_attribute("adminMode", ICD.enums["AdminMode"].index(label))


def mode(deployment: Deployment) -> str:
    value = deployment.read_one(MASTER, "adminMode")
    return "unknown" if value is None else ICD.enums["AdminMode"][value]


@pytest.mark.slow
def test_the_broker_is_away_at_the_start(deploy: Deploy) -> None:
    """With no broker a device server comes up, answers every read with State readable, and says what is wrong; a
    worker keeps trying without a crash; both work by themselves once the broker is there."""
    deployment = deploy(nodes=2)
    broker = deployment.broker
    broker.kill()
    worker = deployment.worker()
    servers = deployment.serve()
    until(lambda: "broker" in deployment.proxy(BUS).status(), "SdpBus says that no broker answers")
    all_can_be_read(deployment, (MASTER, BUS, node_device(0)))
    assert deployment.read_one(BUS, "connected") is False
    assert deployment.proxy(BUS).state() == tango.DevState.ALARM
    assert deployment.quality(node_device(0), "heapsTotal") == "INVALID"
    assert mode(deployment) == "unknown", "what was set before the start is not known yet"
    assert deployment.proxy(MASTER).state() == tango.DevState.UNKNOWN
    with pytest.raises(tango.DevFailed, match="not reached yet"):
        write_mode(deployment, "OFFLINE")
    until(lambda: "it is not known yet where" in worker.text, "the worker says that it tries")
    assert worker.running

    broker.start()
    report = deployment.simulate("--rate", 500, "--seconds", 2).finish()
    until_equal(deployment.totals, expected_totals(report), "totals are what was sent")
    until(lambda: deployment.read_one(BUS, "connected") is True, "connected")
    until(lambda: mode(deployment) == "ONLINE", "the mode is known")
    assert worker.running
    assert worker.text.count("Traceback") == 0
    assert all(server.running for server in servers.values())


def test_topics_are_missing_at_the_start(deploy: Deploy) -> None:
    """Without topics SdpBus' lastError and the worker's log name the topic and the command that makes it; once it is
    created both work, without a restart."""
    deployment = deploy(nodes=2, prepare=False)
    deployment.register()
    worker = deployment.worker()
    deployment.serve()
    missing = f"{deployment.prefix}snapshots does not exist; create it with `sdp-facade topics create`"
    until(lambda: missing in (deployment.read_one(BUS, "lastError") or ""), "lastError names the topic")
    until(lambda: deployment.read_one(BUS, "connected") is True, "the broker itself is there")
    worker.says(f"{deployment.prefix}ingest.heaps")
    all_can_be_read(deployment, (MASTER, BUS, node_device(0)))
    deployment.command("topics", "create")
    report = deployment.simulate("--rate", 500, "--seconds", 2).finish()
    until_equal(deployment.totals, expected_totals(report), "totals are what was sent")
    assert worker.running


@contextmanager
def hanging(pid: int) -> Iterator[None]:
    """Let a process hang: it keeps its connections and answers nobody."""
    os.kill(pid, signal.SIGSTOP)
    stat = Path(f"/proc/{pid}/stat")
    try:
        # Its other threads go on for a moment.
        until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "the process stands still")
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.slow
def test_the_broker_hangs(deploy: Deploy) -> None:
    """While the broker hangs (stopped, not dead) every read is answered, a change of adminMode is refused, window
    values become INVALID, and SdpBus finds out; then all goes on and is exact."""
    deployment = deploy(nodes=2)
    deployment.worker()
    deployment.serve()
    simulation = deployment.simulate("--rate", 500)
    until(lambda: deployment.quality(node_device(0), "heapRate") == "VALID", "values come")
    until(lambda: deployment.read_one(BUS, "connected") is True, "connected")
    with hanging(deployment.broker.pid):
        with pytest.raises(tango.DevFailed, match="not confirmed") as refused:
            write_mode(deployment, "OFFLINE")
        assert "adminMode OFFLINE" in str(refused.value)
        until(lambda: deployment.quality(node_device(0), "heapRate") == "INVALID", "INVALID in silence")
        all_can_be_read(deployment, (MASTER, BUS, node_device(0)))
        until(lambda: deployment.read_one(BUS, "connected") is False, "SdpBus finds out")
        all_can_be_read(deployment, (MASTER, BUS, node_device(0)))
    until(lambda: deployment.read_one(BUS, "connected") is True, "connected again")
    until(lambda: deployment.quality(node_device(0), "heapRate") == "VALID", "values come again")
    report = simulation.stop()
    found = "master/heapsTotal", "master/heapsLate", "ingestHeapsBalance"
    sent = report.expected.used + report.expected.late

    def all_arrived() -> bool:
        totals = deployment.totals()
        return (totals[found[0]] or 0) + (totals[found[1]] or 0) == sent and totals[found[2]] == 0

    until(all_arrived, "everything arrived once")


def test_admin_mode(deploy: Deploy) -> None:
    """adminMode follows the control model: an allowed move holds at once and for the next call, a forbidden one is
    refused with from and to; modes out of use make State DISABLE; it is pushed as change and archive event."""
    deployment = deploy(nodes=1)
    deployment.server("control")
    until(lambda: mode(deployment) == "ONLINE", "the initial mode")
    subscriber = Subscriber(deployment, [MASTER])
    for wanted in ("OFFLINE", "NOT_FITTED", "RESERVED", "OFFLINE", "ENGINEERING", "ONLINE", "OFFLINE", "RESERVED"):
        write_mode(deployment, wanted)
        assert mode(deployment) == wanted, "a read right after the write gives what was written"
    with pytest.raises(tango.DevFailed) as refused:
        write_mode(deployment, "ONLINE")
    assert "from RESERVED" in str(refused.value)
    assert "to ONLINE" in str(refused.value)
    with pytest.raises(tango.DevFailed):
        deployment.proxy(MASTER).write_attribute("adminMode", 17)
    until(lambda: deployment.proxy(MASTER).state() == tango.DevState.DISABLE, "out of use")
    for kind in ("change", "archive"):
        until_equal(
            lambda kind=kind: subscriber.value(MASTER, "adminMode", kind),
            ICD.enums["AdminMode"].index("RESERVED"),
            f"adminMode as {kind} event",
        )


def test_admin_mode_outlives_a_restart(deploy: Deploy) -> None:
    """After a kill -9 the mode is that of before; at no moment does the device show another one, or a State other
    than DISABLE or UNKNOWN."""
    deployment = deploy(nodes=1)
    server = deployment.server("control")
    until(lambda: mode(deployment) == "ONLINE", "the initial mode")
    write_mode(deployment, "OFFLINE")
    write_mode(deployment, "NOT_FITTED")
    until(lambda: deployment.proxy(MASTER).state() == tango.DevState.DISABLE, "out of use")
    for _ in range(3):
        server.kill()
        deployment.forget_proxies()
        server = deployment.server("control")
        seen = set()

        def known(seen: set[tuple[str, str]] = seen) -> bool:
            seen.add((mode(deployment), str(deployment.proxy(MASTER).state())))
            return ("NOT_FITTED", "DISABLE") in seen

        until(known, "the mode from before", every=0.002)
        assert {m for m, _ in seen} <= {"unknown", "NOT_FITTED"}, seen
        assert {s for _, s in seen} <= {"UNKNOWN", "DISABLE"}, seen


def restart(deployment: Deployment, device: str, command: str) -> None:
    """Restart a device in Tango's way, and see its State as it was: at once, unless the whole server is restarted."""
    proxy = deployment.proxy(device)
    before, admin = proxy.state(), tango.DeviceProxy(proxy.adm_name())
    if command == "Init":
        proxy.Init()
    elif command == "DevRestart":
        admin.DevRestart(device)
    else:  # answers at once, works behind that, and discards calls until it has ended
        admin.RestartServer()
        until(lambda: is_made_anew(deployment, device), f"{device} is made anew")
    assert deployment.proxy(device).state() == before


def is_made_anew(deployment: Deployment, device: str) -> bool:
    """Return whether Tango's record of a device's calls no longer has the one of `restart`: it is a new object's."""
    try:
        calls = deployment.proxy(device).black_box(100)
        return not any("adm_name" in call for call in calls)
    except tango.DevFailed:
        return False  # it is about to be


@pytest.mark.parametrize("command", ["Init", "DevRestart", "RestartServer"])
def test_restarts_by_tango_while_events_flow(deploy: Deploy, command: str) -> None:
    """Neither Init nor the restarts of the admin device change what is shown, and events go on."""
    deployment = deploy(nodes=2)
    deployment.worker()
    deployment.serve()
    simulation = deployment.simulate("--rate", 500)
    devices = (MASTER, BUS, node_device(0))
    until(lambda: deployment.quality(node_device(0), "heapRate") == "VALID", "values come")
    for device in devices:  # a State that still changes by itself says nothing of Init
        until(lambda d=device: deployment.proxy(d).state() == tango.DevState.ON, f"{device} is well")
    subscriber = Subscriber(deployment, devices)
    for _ in range({"Init": 50, "DevRestart": 5, "RestartServer": 2}[command]):
        for device in devices:
            restart(deployment, device, command)
    until(lambda: deployment.quality(node_device(0), "heapRate") == "VALID", "the newest window is shown again")
    last = max(event.arrived for event in subscriber.events())

    def go_on() -> bool:
        newest = [subscriber.newest(device, name) for device, name in wanted]
        return all(event is not None and event.arrived > last for event in newest)

    wanted = ((node_device(0), "heapsTotal"), (MASTER, "heapsTotal"), (BUS, "ingestHeapsUsed"))
    until(go_on, "events go on")
    report = simulation.stop()
    until_equal(deployment.totals, expected_totals(report), "totals are what was sent")


@pytest.mark.parametrize(
    "with_broker", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["broker there", "broker away"]
)
def test_sigterm(deploy: Deploy, with_broker: bool) -> None:
    """SIGTERM ends workers and device servers with exit code 0, also with no broker to say goodbye to."""
    deployment = deploy(nodes=1)
    processes = [deployment.worker(), *deployment.serve().values()]
    simulation = deployment.simulate("--rate", 500, "--seconds", 1)
    simulation.finish()
    until(lambda: deployment.read_one(MASTER, "heapsTotal") == 500, "all was taken")
    if not with_broker:
        deployment.broker.kill()
        until(lambda: deployment.read_one(BUS, "connected") is False, "the broker is missed")
    for process in processes:
        process.signal(signal.SIGTERM)
    codes = {process.name: process.exit_code() for process in processes}
    assert codes == {process.name: 0 for process in processes}


@pytest.mark.slow
def test_a_planned_stop_repeats_no_work(deploy: Deploy) -> None:
    """A worker that gets SIGTERM commits what it took: restarting it in the middle of the stream loses and
    doubles nothing; device servers likewise."""
    deployment = deploy(nodes=2)
    servers = deployment.serve()
    worker = deployment.worker()
    simulation = deployment.simulate("--rate", 3000, "--gaps", 0.001)
    simulation.sends(3000)
    for name in ("control", "ingest-00"):
        assert worker.terminate() == 0, worker.tail()
        worker = deployment.worker()
        worker.await_handler(signal.SIGTERM)
        assert servers[name].terminate() == 0, servers[name].tail()
        deployment.forget_proxies()
        servers[name] = deployment.server(name)
        simulation.sends(simulation.report.sent + 3000)
    report = simulation.stop()
    until_equal(deployment.totals, expected_totals(report), "totals are what was sent")


def refused_start(deployment: Deployment, *words: str, instance: str = "control", **changes: str) -> None:
    """Start a device server that must end by itself, with a clear message."""
    server = deployment.server(instance, ready=False, **changes)
    assert server.exit_code() not in (0, None), server.tail()
    for word in words:
        assert word in server.text, server.tail()
    assert "Traceback" not in server.text


@pytest.mark.parametrize("variable", ["SDP_INGEST_NODES", "SDP_RACK_SIZE", "SDP_METRICS_PORT"])
def test_a_bad_setting_is_named(deploy: Deploy, variable: str) -> None:
    """A setting that makes no sense stops device server and worker with a message that names it."""
    deployment = deploy(nodes=1)
    refused_start(deployment, variable, **{variable: "abc"})
    worker = deployment.worker(**{variable: "abc"})
    assert worker.exit_code() == 1
    assert variable in worker.text
    assert "Traceback" not in worker.text


def test_a_device_outside_the_deployment_is_named(deploy: Deploy) -> None:
    """A device for a node that the deployment does not have stops the server with a message that says what to do."""
    deployment = deploy(nodes=3)
    refused_start(deployment, "mid-sdp/ingest/0002", "SDP_INGEST_NODES", instance="ingest-00", SDP_INGEST_NODES="2")


def test_an_unknown_instance_is_named(deploy: Deploy) -> None:
    """An instance that is not in the database stops with a message."""
    refused_start(deploy(nodes=1, prepare=False), "nonsense", instance="nonsense")


def test_the_tango_database_is_away(deploy: Deploy) -> None:
    """Without its database a device server ends with a message that names TANGO_HOST."""
    host = f"127.0.0.1:{choose_port()}"
    refused_start(deploy(nodes=1, prepare=False), host, TANGO_HOST=host)


def test_a_wrong_interface_stops_the_server(deploy: Deploy, tmp_path: Path) -> None:
    """A mistake in the ICD stops the server with file and key."""
    root = Path(facade.__file__).parents[1]
    copy = tmp_path / "copy"
    for name in ("facade", "devices", "schemas", "docker", "tango-db"):
        shutil.copytree(root / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    wrong = copy / "schemas" / "icd" / "SdpIngestNode.toml"
    wrong.write_text(wrong.read_text().replace('rule = "max"', 'rule = "maximum"'))
    refused_start(deploy(nodes=1, prepare=False), "SdpIngestNode.toml", "maximum", PYTHONPATH=str(copy))
