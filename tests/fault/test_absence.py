"""What is missing at a start or goes away: clear words, answers all the same, and recovery without a hand (rule 8).

How soon the answers come is measured by `make bench`: reads, outage.
"""

import itertools
import re
import shutil
from pathlib import Path

import pytest
import tango

import facade
from tests.conftest import Deploy
from tests.support.deployment import BUS, ICD, MASTER, Deployment, await_totals, node_device
from tests.support.events import Subscriber
from tests.support.ports import nobody
from tests.support.subarrays import standing_still
from tests.support.waiting import until, until_equal

pytestmark = [pytest.mark.kafka, pytest.mark.tango]

KINDS = ("change", "archive")


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


def set_mode(deployment: Deployment, label: str) -> None:
    """Write the mode until the bus has confirmed it: a broker that stands still may take longer than a call."""

    def confirmed() -> bool:
        try:
            write_mode(deployment, label)
        except tango.DevFailed as failed:
            if not re.search("was not (sent|confirmed)", failed.args[0].desc):
                raise
            return False
        return True

    until(confirmed, f"adminMode {label} is confirmed")


def mode(deployment: Deployment) -> str:
    value = deployment.read_one(MASTER, "adminMode")
    return "unknown" if value is None else ICD.enums["AdminMode"][value]


@pytest.mark.slow
def test_the_broker_is_away_at_the_start(deploy: Deploy) -> None:
    """With no broker a device server answers each read, and says what is wrong; a worker keeps trying. Once the broker
    is there both name the topics that are missing, and the command that makes them; then they work."""
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
    assert all(process.running for process in (worker, *servers.values()))
    assert worker.text.count("Traceback") == 0


def test_admin_mode(deploy: Deploy) -> None:
    """adminMode follows the control model: an allowed move holds at once, a forbidden one is refused with from and to.
    It is pushed, makes State DISABLE, and outlives a kill -9, after which no other mode or State is shown."""
    deployment = deploy(nodes=1)
    server = deployment.server("control")
    until(lambda: mode(deployment) == "ONLINE", "the initial mode")
    subscriber = Subscriber(deployment, [MASTER])
    modes = itertools.cycle(("OFFLINE", "ONLINE"))

    def events_come() -> bool:
        """Change the mode: Tango loses events that are pushed before the client's connection stands."""
        set_mode(deployment, next(modes))
        return all(len(subscriber.by_attribute(kind)[MASTER, "adminMode"]) > 1 for kind in KINDS)

    until(events_come, "adminMode is pushed")
    for wanted in ("OFFLINE", "NOT_FITTED", "RESERVED", "OFFLINE", "ENGINEERING", "ONLINE", "OFFLINE", "RESERVED"):
        set_mode(deployment, wanted)
        assert mode(deployment) == wanted, "a read right after the write gives what was written"
    with pytest.raises(tango.DevFailed, match=r"from RESERVED.* to ONLINE"):
        write_mode(deployment, "ONLINE")
    with pytest.raises(tango.DevFailed):
        deployment.proxy(MASTER).write_attribute("adminMode", 17)
    until(lambda: deployment.proxy(MASTER).state() == tango.DevState.DISABLE, "out of use")
    for kind in KINDS:
        until_equal(
            lambda kind=kind: subscriber.value(MASTER, "adminMode", kind),
            ICD.enums["AdminMode"].index("RESERVED"),
            f"adminMode as {kind} event",
        )
    server.kill()
    deployment.forget_proxies()
    deployment.server("control")
    seen: set[tuple[str, str]] = set()

    def known() -> bool:
        seen.add((mode(deployment), str(deployment.proxy(MASTER).state())))
        return ("RESERVED", "DISABLE") in seen

    until(known, "the mode from before", every=0.002)
    assert {m for m, _ in seen} <= {"unknown", "RESERVED"}, seen
    assert {s for _, s in seen} <= {"UNKNOWN", "DISABLE"}, seen


def restart(deployment: Deployment, device: str, command: str) -> None:
    """Restart a device in Tango's way, and see its State as it was: at once, unless the whole server is restarted."""
    proxy = deployment.proxy(device)
    before, admin = proxy.state(), "/".join(proxy.adm_name().split("/")[-3:])
    until(lambda: answers(deployment, admin), "the admin device takes a connection")
    if command == "Init":
        proxy.Init()
    elif command == "DevRestart":
        deployment.proxy(admin).DevRestart(device)
    else:  # answers at once, works behind that, and discards calls until it has ended
        deployment.proxy(admin).RestartServer()
        until(lambda: is_made_anew(deployment, device), f"{device} is made anew")
    shown = deployment.proxy(device).state()
    assert shown == before or {shown, before} <= BY_THEMSELVES, f"{shown}, not {before}"


def answers(deployment: Deployment, device: str) -> bool:
    try:
        return bool(deployment.proxy(device).ping())
    except tango.DevFailed:  # omniORB gives up a connection that is made while another one is closed
        return False


BY_THEMSELVES = {tango.DevState.ON, tango.DevState.ALARM, tango.DevState.STANDBY}
"""States between which devices change while a worker or the sender stands still; a new object begins with another."""
CALLS_KEPT = 50
"""Calls in Tango's record of a device's calls."""


def is_made_anew(deployment: Deployment, device: str) -> bool:
    """Return whether Tango's record of a device's calls is a new object's: it has room, and lacks that of `restart`.

    Each look at the record is a call in it: enough of them push that of `restart` out.
    """
    try:
        calls = deployment.proxy(device).black_box(CALLS_KEPT)
        return len(calls) < CALLS_KEPT and not any("adm_name" in call for call in calls)
    except tango.DevFailed:
        return False  # it is about to be


@pytest.mark.slow
def test_restarts_by_tango_while_events_flow_and_a_broker_that_hangs(deploy: Deploy) -> None:
    """Neither Init nor the restarts of the admin device change what is shown, and events go on. While the broker hangs
    (stopped, not dead) every read is answered, a change of adminMode is refused, window values become INVALID, and
    SdpBus finds out; then all goes on and is exact."""
    deployment = deploy(nodes=2)
    deployment.worker()
    deployment.serve()
    simulation = deployment.simulate("--rate", 500)
    devices = (MASTER, BUS, node_device(0))
    until(lambda: deployment.quality(node_device(0), "heapRate") == "VALID", "values come")
    for device in devices:  # a State that still changes by itself says nothing of Init
        until(lambda d=device: deployment.proxy(d).state() == tango.DevState.ON, f"{device} is well")
    subscriber = Subscriber(deployment, devices)
    for command, times in (("Init", 20), ("DevRestart", 3), ("RestartServer", 1)):
        for device in devices * times:
            restart(deployment, device, command)
    until(lambda: deployment.quality(node_device(0), "heapRate") == "VALID", "the newest window is shown again")
    last = max(event.arrived for event in subscriber.events())

    def go_on() -> bool:
        newest = [subscriber.newest(device, name) for device, name in wanted]
        return all(event is not None and event.arrived > last for event in newest)

    wanted = ((node_device(0), "heapsTotal"), (MASTER, "heapsTotal"), (BUS, "ingestHeapsUsed"))
    until(go_on, "events go on")
    while_the_broker_hangs(deployment)
    report = simulation.stop()
    found = "master/heapsTotal", "master/heapsLate", "ingestHeapsBalance"
    sent = report.expected.used + report.expected.late

    def all_arrived() -> bool:
        totals = deployment.totals()
        return (totals[found[0]] or 0) + (totals[found[1]] or 0) == sent and totals[found[2]] == 0

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


@pytest.mark.slow
def test_sigterm(deploy: Deploy) -> None:
    """SIGTERM ends each kind of worker and device server with exit code 0, also with no broker to say goodbye to."""
    deployment = deploy(nodes=1, subarrays=1)
    end_first = [
        deployment.start("tables", ["sdp-facade", "tables", "assemble"]),
        deployment.start("intake", ["sdp-facade", "alerts", "intake"]),
        deployment.controller(),
        *(deployment.server(name, ready=False) for name in ("alerts", "calibration", "quality")),
    ]
    end_without = [deployment.worker(), *deployment.serve().values()]
    for server in end_first[3:]:
        deployment.await_server(server, server.name)
    until(lambda: deployment.read_one(BUS, "connected") is True, "connected")
    for process in end_first:
        assert process.terminate() == 0, process.tail()
    deployment.broker.kill()
    until(lambda: deployment.read_one(BUS, "connected") is False, "the broker is missed")
    for process in end_without:
        assert process.terminate() == 0, process.tail()


def test_a_server_that_cannot_start_says_why(deploy: Deploy, tmp_path: Path) -> None:
    """A wrong setting, a device outside the deployment, no database, a mistake in the ICD: one message."""
    deployment = deploy(nodes=3)
    root, copy = Path(facade.__file__).parents[1], tmp_path / "copy"
    for name in ("facade", "devices", "schemas", "docker", "tango-db"):
        shutil.copytree(root / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    wrong = copy / "schemas" / "icd" / "SdpIngestNode.toml"
    wrong.write_text(wrong.read_text().replace('rule = "max"', 'rule = "maximum"'))
    server, worker = ["SdpFacade", "control"], ["sdp-facade", "aggregate"]
    with nobody() as nowhere:
        cases: list[tuple[list[str], dict[str, str], tuple[str, ...]]] = [
            *((argv, {"SDP_RACK_SIZE": "abc"}, ("SDP_RACK_SIZE",)) for argv in (server, worker)),
            (["SdpFacade", "ingest-00"], {"SDP_INGEST_NODES": "2"}, ("mid-sdp/ingest/0002", "SDP_INGEST_NODES")),
            (["SdpFacade", "nonsense"], {}, ("nonsense",)),
            (server, {"TANGO_HOST": nowhere}, (nowhere,)),
            (server, {"PYTHONPATH": str(copy)}, ("SdpIngestNode.toml", "maximum")),
        ]
        started = [
            (deployment.start(f"refused-{number}", argv, **changes), words)
            for number, (argv, changes, words) in enumerate(cases)
        ]
        for process, words in started:
            assert process.exit_code() not in (0, None), process.tail()
            assert all(word in process.text for word in words), process.tail()
            assert "Traceback" not in process.text
