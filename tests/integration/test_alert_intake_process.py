"""The intake of alert packets as a process on a real broker: killed in the middle, each packet is still taken once."""

import hashlib
import json
import subprocess
from collections import Counter, defaultdict
from typing import Any

import pytest

from facade.flows.alerts.packets import PacketCodec
from facade.flows.alerts.simulator.stream import AlertReport, read_alert_report
from facade.kernel.icd.load import load
from tests.conftest import Deploy
from tests.support import topics
from tests.support.deployment import Deployment
from tests.support.processes import Running
from tests.support.waiting import until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

PACKETS = 600
NO_TANGO = "127.0.0.1:1"


def intake(deployment: Deployment, slot: str = "0") -> Running:
    return deployment.start(f"intake-{slot}", ["sdp-facade", "alerts", "intake", "--slot", slot])


def alerts(deployment: Deployment) -> list[dict[str, Any]]:
    return [json.loads(m.value()) for m in deployment.messages("alerts")]


def attachment(deployment: Deployment, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return deployment.run("alerts", "attachment", *arguments)


def test_a_kill_in_the_middle_loses_and_doubles_no_packet(deploy: Deploy) -> None:
    """A kill -9 while packets and damaged ones come: each good one is on `alerts` once and in the order of its
    source, each bad one is a dead letter with its reason, and what came along can be fetched. A giant that is small
    only while it is compressed does not even get to the bus."""
    deployment = deploy(prepare=False, tango_host=NO_TANGO)
    deployment.create_topics()
    giant = [(b"giant", bytes(20_000_000))]
    with pytest.raises(AssertionError, match=r"MSG_SIZE_TOO_LARGE|too large"):
        topics.send(
            deployment.bootstrap, deployment.topic("alert-packets"), giant, settings={"compression.type": "lz4"}
        )
    file = deployment.folder / "sent.json"
    argv = ["sdp-facade", "simulate", "alerts", "--night", "--size", "20000", "--burst", "50", "--every", "0.2"]
    worker = intake(deployment)
    sender = deployment.start("sender", [*argv, "--garbage", "0.05", "--report", str(file)])
    until(lambda: len(alerts(deployment)) >= 300, "some alerts are on the log")
    worker.kill()
    worker = intake(deployment)
    until(lambda: file.exists() and read_alert_report(file).sent >= PACKETS, f"{PACKETS} packets are sent")
    assert sender.terminate() == 0, sender.tail()
    sent = read_alert_report(file)
    until(lambda: accounted(deployment) >= sent.sent, "all packets are accounted for")
    assert worker.terminate() == 0
    compare(deployment, sent)
    fetch_some(deployment)


def accounted(deployment: Deployment) -> int:
    """Count what the committed entries of the account say was taken."""
    entries = deployment.messages("accounts")
    return sum(json.loads(entry.value())["consumed"] for entry in entries)


def compare(deployment: Deployment, sent: AlertReport) -> None:
    by_source: dict[str, list[int]] = defaultdict(list)
    for alert in alerts(deployment):
        by_source[alert["source"]].append(alert["sequence"])
    assert by_source == {name: list(range(1, source.count + 1)) for name, source in sent.sources.items()}
    assert sum(map(len, by_source.values())) == sent.alerts == sent.sent - sum(sent.garbage.values()) >= PACKETS * 0.9
    letters = deployment.messages("dead-letters")
    reasons = Counter(dict(letter.headers())["dl.reason"].decode() for letter in letters)
    assert reasons == sent.dead_letters
    assert accounted(deployment) == sent.sent


def fetch_some(deployment: Deployment) -> None:
    """From the alert alone: the bytes of its images, as they are in the packet."""
    codec = PacketCodec(load())
    packets = {f"{m.partition()}/{m.offset()}": m.value() for m in deployment.messages("alert-packets")}
    for number, said in enumerate(alerts(deployment)[PACKETS // 2]["attachments"]):
        done = attachment(deployment, said["packet"], said["name"], "--sha256", said["sha256"])
        assert done.returncode == 0, done.stderr
        assert done.stdout == codec.decode(packets[said["packet"]]).contents[number].content
        assert hashlib.sha256(done.stdout).hexdigest() == said["sha256"]
    place, name, output = said["packet"], said["name"], deployment.folder / "image.fits"
    assert attachment(deployment, place, name, "--output", str(output)).returncode == 0
    assert output.stat().st_size == said["size"]
    for arguments, says in (
        ((place, "nothing"), "expected the name of one of its attachments"),
        ((place, name, "--sha256", "00"), "expected the digest 00"),
        (("0/999999999", name), "not on alert-packets any more, or never was"),
        (("99/0", name), "has no partition [99]"),
    ):
        done = attachment(deployment, *arguments)
        assert done.returncode == 1
        assert says in " ".join(done.stderr.decode().split())
