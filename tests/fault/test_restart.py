"""State is the log: a device server that is restarted shows what it showed, and nothing false (rule 4)."""

import json
import time
from collections import defaultdict
from itertools import pairwise

import pytest
import tango

from tests.conftest import Deploy
from tests.support.deployment import BUS, MASTER, Deployment, await_totals, node_device, reasons
from tests.support.events import Subscriber
from tests.support.processes import Running
from tests.support.waiting import until, until_equal
from tests.support.windows import heaps_by_window, in_time

pytestmark = [pytest.mark.kafka, pytest.mark.tango]

LOOKED_AT = 3.0
"""So long is looked at what is shown after a start [s]."""
SILENCE = 3.0
"""Whoever is silent for longer may be missed [s]."""


def restart(deployment: Deployment, servers: dict[str, Running], instance: str) -> None:
    """Kill a device server and start it again."""
    servers[instance].kill()
    deployment.forget_proxies()
    servers[instance] = deployment.server(instance)


@pytest.mark.slow
def test_totals_and_last_values_are_back_in_silence(deploy: Deploy) -> None:
    """With the stream silent since long, kill -9 and start: totals are VALID and as before, window values
    INVALID, and SdpBus' account as well."""
    deployment = deploy(nodes=4, rack_size=2)
    deployment.worker()
    servers = deployment.serve()
    report = deployment.simulate("--rate", 2000, "--seconds", 3, "--gaps", 0.01, "--garbage", 0.01).finish()
    await_totals(deployment, report)
    until(lambda: deployment.quality(node_device(0), "heapRate") == "INVALID", "silence")
    expected = report.expected.dead_lettered | report.expected.suppressed
    refused = {f"ingest.heaps {reason}": count for reason, count in expected.items()}
    until_equal(lambda: reasons(deployment.read_one(BUS, "deadLetterReasons")), refused, "reasons")
    for instance in ("ingest-00", "control"):
        restart(deployment, servers, instance)
        await_totals(deployment, report)
        for device in (MASTER, node_device(0), node_device(3)):
            assert deployment.quality(device, "heapsTotal") == "VALID"
            until(lambda d=device: deployment.quality(d, "heapRate") == "INVALID", "windows are invalid")
    until_equal(lambda: reasons(deployment.read_one(BUS, "deadLetterReasons")), refused, "reasons are back")
    # What was sent while nobody listened is there too.
    for instance in ("ingest-00", "ingest-01", "control"):
        servers[instance].kill()
    more = deployment.simulate("--rate", 1000, "--seconds", 1, "--scan-id", 2**40, name="more").finish()
    deployment.forget_proxies()
    servers = deployment.serve()
    sent = sum(one.expected.used + one.expected.late for one in (report, more))

    def counted() -> tuple[int, int]:
        totals = deployment.totals()
        both = ("master/heapsTotal", "master/heapsLate"), ("ingestHeapsUsed", "ingestHeapsLate")
        shown, account = (sum(totals[name] or 0 for name in names) for names in both)
        return shown, account

    until_equal(counted, (sent, sent), "what came meanwhile, and its account")


@pytest.mark.slow
def test_no_half_window_is_ever_shown(deploy: Deploy) -> None:
    """While records flow, device servers are killed and started again: each window that a client is told
    of, per node and over all nodes, is whole (but for the sender's first and last), at every moment."""
    deployment = deploy(nodes=4, rack_size=2)
    deployment.worker()
    servers = deployment.serve()
    simulation = deployment.simulate("--rate", 500)
    devices = [MASTER, *map(node_device, range(4))]
    until(lambda: deployment.quality(MASTER, "heapRate") == "VALID", "values come")
    subscriber = Subscriber(deployment, devices)
    seen: dict[tuple[str, str], set[tuple[float, float]]] = {}

    def look() -> None:
        for device in devices:
            for name in ("heapRate", "packetsReceivedRate"):
                try:
                    found = deployment.proxy(device).read_attribute(name)
                except tango.DevFailed:  # the server is being killed; nothing is shown
                    deployment.forget_proxies()
                    continue
                if str(found.quality) in ("ATTR_VALID", "ATTR_WARNING"):
                    seen.setdefault((device, name), set()).add((found.value, found.time.totime()))

    for instance in ("control", "ingest-00", "control"):
        restart(deployment, servers, instance)
        end = time.monotonic() + LOOKED_AT
        while time.monotonic() < end:
            look()
        until(lambda: deployment.quality(MASTER, "heapRate") in ("VALID", "WARNING"), "values go on")
        until(lambda: deployment.quality(node_device(0), "heapRate") == "VALID", "of the node as well")
    simulation.stop()
    raw = heaps_by_window(deployment.messages("ingest.heaps"))
    first, last = max(map(min, raw.values())), min(map(max, raw.values()))
    for events in subscriber.by_attribute().values():
        for event in events:
            if event.attribute in ("heapRate", "packetsReceivedRate") and event.quality in ("VALID", "WARNING"):
                seen.setdefault((event.device, event.attribute), set()).add((event.value, event.time))
    wrong = []
    for (device, name), values in seen.items():
        for value, at in values:
            window = int(at)
            if not first < window < last:
                continue
            nodes = range(4) if device == MASTER else [int(device[-4:])]
            heaps = [heap for node in nodes for heap in raw[node][window]]
            least, most = (
                len(some) if name == "heapRate" else sum(heap["received"] for heap in some)
                for some in (in_time(heaps, window), heaps)
            )
            if not least <= value <= most:
                wrong.append(f"{device}/{name} of window {window}: {value}, wanted {least} to {most}")
    assert not wrong, "\n".join(sorted(wrong))


def snapshot_says_well(deployment: Deployment) -> bool:
    """Return whether the newest snapshots of the control instance were taken in health."""
    newest = {m.key(): json.loads(m.value()) for m in deployment.messages("snapshots")}
    shown = [s["readings"].get(MASTER, {}) for key, s in newest.items() if key.startswith(b"SdpFacade-control/")]
    kept = [readings for readings in shown if readings]  # what begins anew at each start keeps none
    return bool(kept) and all(readings.get("healthState", [""])[0] == "OK" for readings in kept)


def stood_still(deployment: Deployment, since: float) -> dict[str, float]:
    """Return who wrote nothing for longer than health allows, but for the server that was killed, and for how long."""
    written: defaultdict[str, list[float]] = defaultdict(list)
    for topic in ("heartbeats", "ingest.heaps"):
        for one in deployment.messages(topic):
            at = one.timestamp()[1] / 1e3
            if at > since - SILENCE:
                written[json.loads(one.value()).get("component", "nodes")].append(at)
    del written["SdpFacade-control"]
    longest = {who: max(b - a for a, b in pairwise([since, *sorted(times)])) for who, times in written.items()}
    return {who: silence for who, silence in longest.items() if silence > SILENCE}


@pytest.mark.slow
def test_health_does_not_flap_at_a_restart(deploy: Deploy) -> None:
    """A restart of the control instance shows neither an alarm nor a health other than the one before: a worker that
    is alive is not missed, nodes that report are not silent."""
    deployment = deploy(nodes=2)
    deployment.worker()
    servers = deployment.serve()
    deployment.controller()
    simulation = deployment.simulate("--rate", 500)
    until(lambda: deployment.read_one(MASTER, "healthState") == 0, "all is well")
    until(lambda: str(deployment.proxy(BUS).state()) == "ON", "all is well")
    until(lambda: snapshot_says_well(deployment), "the snapshot says so too", every=0.3)
    began = time.time()
    restart(deployment, servers, "control")
    seen: set[tuple[object, str, str]] = set()

    def well() -> bool:
        # The reasons are read before and after the rest: those of one that changes meanwhile are seen, too.
        before = deployment.read_one(MASTER, "healthInfo") or ()
        health = deployment.read_one(MASTER, "healthState")
        states = str(deployment.proxy(BUS).state()), str(deployment.proxy(MASTER).state())
        said = (*before, *(deployment.read_one(MASTER, "healthInfo") or ()))
        if said and all(" lags by " in line for line in said):
            return False  # on a busy machine it was away for longer than a reader may lag: that is true
        seen.add((health, *states))
        if said:
            print(f"{time.monotonic():.3f} s: {said}")
        return (0, "ON", "ON") in seen

    until(well, "all is well again", every=0.005)
    later = time.monotonic() + 1.5
    until(lambda: well() and time.monotonic() > later, "and stays so", every=0.005)
    states = {"UNKNOWN", "ON"}
    bad = {s for s in seen if s[0] not in (None, 0) or not {s[1], s[2]} <= states}
    # What was away, by the log, is rightly missed.
    assert not bad or stood_still(deployment, began), bad
    simulation.stop()
