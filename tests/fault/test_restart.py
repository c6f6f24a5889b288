"""State is the log: a device server that is restarted shows what it showed, and nothing false (rule 4)."""

import time
from collections.abc import Iterator

import pytest
import tango

from facade.infra import local
from tests.support.deployment import BUS, MASTER, Deployment, await_totals, node_device, reasons
from tests.support.events import Subscriber
from tests.support.waiting import until, until_equal
from tests.support.windows import heaps_by_window, in_time

# In one group: they share a deployment.
pytestmark = [pytest.mark.kafka, pytest.mark.tango, pytest.mark.slow, pytest.mark.xdist_group("restart")]

LOOKED_AT = 3.0
"""So long is looked at what is shown after a start [s]."""


class Site:
    """Four nodes in two racks, a worker, and device servers that are killed and started again."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        deployment.worker()
        self._servers = deployment.serve()

    def restart(self, instance: str) -> None:
        self._servers[instance].kill()
        self.deployment.forget_proxies()
        self._servers[instance] = self.deployment.server(instance)


@pytest.fixture(scope="module")
def site(infra: local.Endpoints, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Deployment(infra, tmp_path_factory.mktemp("restart"), nodes=4, rack_size=2) as deployment:
        deployment.prepare()
        yield Site(deployment)


def test_totals_and_last_values_are_back_in_silence(site: Site) -> None:
    """With the stream silent since long, kill -9 and start: totals are VALID and as before, window values
    INVALID, and SdpBus' account as well."""
    deployment = site.deployment
    report = deployment.simulate("--rate", 2000, "--seconds", 3, "--gaps", 0.01, "--garbage", 0.01).finish()
    await_totals(deployment, report)
    until(lambda: deployment.quality(node_device(0), "heapRate") == "INVALID", "silence")
    expected = report.expected.dead_lettered | report.expected.suppressed
    refused = {f"ingest.heaps {reason}": count for reason, count in expected.items()}
    until_equal(lambda: reasons(deployment.read_one(BUS, "deadLetterReasons")), refused, "reasons")
    for instance in ("ingest-00", "control"):
        site.restart(instance)
        await_totals(deployment, report)
        for device in (MASTER, node_device(0), node_device(3)):
            assert deployment.quality(device, "heapsTotal") == "VALID"
            until(lambda d=device: deployment.quality(d, "heapRate") == "INVALID", "windows are invalid")
    until_equal(lambda: reasons(deployment.read_one(BUS, "deadLetterReasons")), refused, "reasons are back")


def test_no_half_window_is_ever_shown(site: Site) -> None:
    """While records flow, device servers are killed and started again: each window that a client is told
    of, per node and over all nodes, is whole (but for the sender's first and last), at every moment."""
    deployment = site.deployment
    earlier = {(one.partition(), one.offset()) for one in deployment.messages("ingest.heaps")}
    simulation = deployment.simulate("--rate", 500, name="while-killed")
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
        site.restart(instance)
        end = time.monotonic() + LOOKED_AT
        while time.monotonic() < end:
            look()
        until(lambda: deployment.quality(MASTER, "heapRate") in ("VALID", "WARNING"), "values go on")
        until(lambda: deployment.quality(node_device(0), "heapRate") == "VALID", "of the node as well")
    simulation.stop()
    sent = (one for one in deployment.messages("ingest.heaps") if (one.partition(), one.offset()) not in earlier)
    raw = heaps_by_window(sent)
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
