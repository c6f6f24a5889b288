"""Quality metrics through real processes: arrays become events, and what stops becomes INVALID."""

import math
import re

import numpy as np
import pytest

from tests.conftest import Deploy
from tests.support.deployment import BUS, CLOCK, Deployment
from tests.support.events import Event, Subscriber
from tests.support.processes import Running
from tests.support.waiting import until, until_equal

pytestmark = [pytest.mark.kafka, pytest.mark.tango]

DEVICE = "mid-sdp/quality/01"
ANTENNAS = 6
SENT = re.compile(r"sent (\d+) metrics")
IMAGES = {"noiseBaseline", "visibilityAmplitude"}
STOPPING = {"flaggedFraction", "bandpassSpectrum", *IMAGES}


def simulate(deployment: Deployment, name: str, *options: object) -> Running:
    argv = ["sdp-facade", "simulate", "quality", "--antennas", str(ANTENNAS), "--encoding", "arrow"]
    return deployment.start(name, [*argv, *map(str, options)])


def test_metrics_become_events_and_what_stops_becomes_invalid(deploy: Deploy) -> None:
    """Then a server that starts late has the newest of all."""
    deployment = deploy(nodes=1)
    server = deployment.server("quality")
    deployment.server("control")
    until(lambda: deployment.quality(DEVICE, "connected") == "VALID", "the bus is reached")
    subscriber, begin = Subscriber(deployment, [DEVICE]), CLOCK.now()
    simulator = simulate(deployment, "simulate", "--rate", 4, "--scan-id", 1)

    def fresh(kind: str) -> dict[str, Event]:
        names = IMAGES if kind == "ready" else STOPPING - IMAGES
        newest = {name: subscriber.newest(DEVICE, name, kind) for name in names}
        valid = {n: e for n, e in newest.items() if e and e.quality == "VALID" and e.time > begin}
        return valid if valid.keys() == names else {}

    for kind in ("change", "archive"):
        found = until(lambda kind=kind: fresh(kind), f"{kind} events")
        assert 0 < found["flaggedFraction"].value < 1
        assert len(found["bandpassSpectrum"].value) == 1024
    found = until(lambda: fresh("ready"), "images are ready to be read")
    rows = found["noiseBaseline"].value
    assert [len(row) for row in rows] == [ANTENNAS] * ANTENNAS
    assert all(math.isnan(value) == (x == y) for y, row in enumerate(rows) for x, value in enumerate(row))
    assert [len(row) for row in found["visibilityAmplitude"].value] == [64] * ANTENNAS
    until(lambda: subscriber.value(DEVICE, "scanID") == 1, "the scan id has come")
    assert simulator.terminate() == 0
    for kind in ("change", "archive", "ready"):
        for name in IMAGES if kind == "ready" else STOPPING - IMAGES:
            until(lambda kind=kind, name=name: subscriber.newest(DEVICE, name, kind).quality == "INVALID", name)
    assert deployment.read_one(DEVICE, "antennaNames") == ("SKA001", "SKA002", "SKA003", "SKA004", "SKA005", "SKA006")

    sent = int(SENT.search(simulator.text.replace(",", ""))[1])
    names = ("qualityConsumed", "qualityUsed", "qualitySuppressed", "qualityDeadLettered", "qualityBalance")
    wanted = dict(zip(names, (sent, sent, 0, 0, 0), strict=True))
    until_equal(lambda: deployment.read(BUS, *wanted), wanted, "all of them are in the account")
    server.kill()
    deployment.forget_proxies()
    simulator = simulate(deployment, "simulate-again", "--count", 1, "--scan-id", 9)
    assert simulator.exit_code() == 0, simulator.tail()
    deployment.server("quality")
    until(lambda: deployment.read_one(DEVICE, "scanID") == 9, "the newest is there")
    until_equal(lambda: np.size(deployment.read_one(DEVICE, "channelFrequencies")), 1024, "so are its channels")
