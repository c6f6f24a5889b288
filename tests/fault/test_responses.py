"""Accidents on real processes: the cause is shown, what the page advises is done, and with that all is well again.

All texts of health, alarms and nodes are kept: none may be wrong on the way.
"""

import json
import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from facade.kernel.cli.app import app
from facade.kernel.clock import as_seconds, utc_seconds
from facade.kernel.findings import UNKNOWN, Finding
from facade.kernel.runtime.heartbeats import SILENT
from facade.sdp.judgement import Judgement
from sdp_facade_clients.status import devices, judge, questions, see
from tests.conftest import Deploy
from tests.support.deployment import ICD, Deployment, node_device
from tests.support.kafka_proxy import END_TXN, FETCH, KafkaProxy
from tests.support.waiting import until, until_equal

pytestmark = [pytest.mark.kafka, pytest.mark.tango]

_COMMAND = re.compile(r"sdp-facade ([a-z]+(?: (?!and )[\w@/:.-]*[\w])*)")
_BUSY = ("streamLagging@", "streamsLagging@")
"""Alarms that a busy machine may raise at any time; their texts have to be right all the same."""
_ABSENCES = ("serverGone@", "workerSilent@", "controllerSilent@")
_BACK_WITHIN = 10.0
"""Time after an outage from which on a process that is not heard counts as silent [s]."""
_AWAY = 12.0
"""Time without a broker, longer than records may be late [s]."""
_DISK = 4 << 20
"""Size of the small disk [bytes]."""
NODES = 4
SKEWED = NODES - 1
OTHERS = {
    "logs": ("logs", "aggregate"),
    "alerts-intake": ("alerts", "intake"),
    "tables-assemble": ("tables", "assemble"),
}
"""Workers besides those of heaps."""
OTHERS_GONE = [f"{one}Gone@sdp-facade" for one in ("logs", "intake", "assembler")]


class Operator:
    """Looks at the deployment as the page does, keeps what it says, and does what it advises."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.accident = "none"
        self.said: dict[tuple[str, str], float] = {}
        """Accident, and a text that was shown meanwhile; with the time at which it was seen first [Unix s]."""
        self.alarms: set[tuple[str, str]] = set()
        """Accident, and an alarm that was shown as a finding meanwhile."""
        self.texts: dict[str, str] = {}
        """Present text of each alarm."""

    def look(self) -> Judgement:
        answers = {name: self._ask(*one) for name, one in questions().items()}
        alarms = None
        if answers["alerts"] is not None and answers["alerts"]["State"] != "UNKNOWN":
            alarms = json.loads(self.deployment.proxy(devices().alerts).GetAlarms())
        seen = see(answers, alarms, [], lambda instance: "", ICD.enums["HealthState"])
        judged = judge(seen, ICD.conditions)
        self.texts = {f"{one['condition']}@{one['source']}": one["text"] for one in alarms or ()}
        for one in judged.findings:
            self._note(f"{one.about}: {one.text} -> {one.do}")
            if one.alarm:
                self.alarms.add((self.accident, one.alarm))
        for node in range(NODES):
            status = self.deployment.read_one(node_device(node), "Status")
            self._note(f"node {node}: {status}")
        return judged

    def _note(self, text: str) -> None:
        self.said.setdefault((self.accident, text), self.deployment.clock.now())

    def until(self, is_so: Callable[[Judgement], Any], what: str) -> Judgement:
        def looked() -> Judgement | None:
            judged = self.look()
            return judged if is_so(judged) else None

        return until(looked, what)

    def until_well(self) -> None:
        """Wait until no alarm is left, nor one that is delayed; acknowledge what is over, as the judgement says.

        Beside much other work a reader may be behind at any time. That is no alarm for long, or one of `_BUSY`.
        """

        def left() -> list[str]:
            judged = self.look()
            for one in judged.findings:
                if "Acknowledge it" in one.do:
                    self.follow(one)
            known = judged.state != UNKNOWN
            told = [one.text for one in judged.findings if not known or (one.alarm and not one.alarm.startswith(_BUSY))]
            return told + [text for alarm, text in self.texts.items() if not alarm.startswith(_BUSY)]

        until_equal(left, [], "all is well")

    def until_told(self, alarm: str) -> Finding:
        """Wait for an alarm that operators see, and return its finding."""

        def told(judged: Judgement) -> list[Finding]:
            return [one for one in judged.findings if one.alarm == alarm and "UNACK" in one.text]

        return told(self.until(told, f"the alarm {alarm}"))[0]

    def follow(self, finding: Finding) -> None:
        """Run each command of an advice; a program that goes on is left running."""
        commands = _COMMAND.findall(finding.do)
        assert commands, finding.do
        for command in commands:
            words = shlex.split(command)
            if words[0] == "alerts" and words[1] != "intake":
                done = CliRunner().invoke(app, words, env=self.deployment.environment)
                assert done.exit_code == 0, done.output
            else:
                self.deployment.launch("-".join(words).replace("/", "-"), *words)

    @contextmanager
    def having(self, accident: str) -> Iterator[None]:
        """Have an accident, which is over at the end."""
        self.accident = accident
        self.deployment.forget_proxies()
        yield
        self.until_well()
        self.accident = "none"

    def _ask(self, device: str, names: tuple[str, ...]) -> dict[str, Any] | None:
        found = self.deployment.read(device, *names)
        if all(value is None for value in found.values()):
            return None
        return found | ({"State": str(found["State"])} if "State" in found else {})


@pytest.fixture
def entered() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.slow
def test_each_accident_shows_its_cause_and_ends_when_the_advice_is_followed(
    deploy: Deploy, entered: ExitStack, tmp_path: Path
) -> None:
    without = "calibration,quality,mirror,logs"
    deployment = deploy(nodes=NODES, rack_size=2, without=without)
    servers = {name: deployment.server(name, ready=False) for name in (*deployment.instances, "alerts")}
    network, other = (entered.enter_context(KafkaProxy(deployment.bootstrap)) for _ in range(2))
    workers = [deployment.worker(f"{slot}", KAFKA_BOOTSTRAP=one.bootstrap) for slot, one in enumerate((network, other))]
    deployment.launch("nodes", "simulate", "ingest", "--rate", 10 * SKEWED, "--nodes", SKEWED)
    last = ("simulate", "ingest", "--rate", 10, "--nodes", 1, "--first-node", SKEWED)
    node = deployment.launch("node", *last)
    controller = deployment.controller()
    others = {name: deployment.launch(f"{name}-0", *words) for name, words in OTHERS.items()}
    for name, server in servers.items():
        deployment.await_server(server, name)
    # Silence counts from the start of a device server on, so a simulator that starts late may be an alarm before.
    until(lambda: all(each_node(deployment, "sends")), "each node sends")
    # Both workers have their partitions, and have written: one that still asks where to begin is not named by a window.
    until(lambda: other.asked[END_TXN], "the second worker commits")
    before = network.asked[END_TXN]
    until(lambda: network.asked[END_TXN] > before, "the first worker commits with the partitions that it keeps")
    Operator(deployment).until_well()
    operator = Operator(deployment)

    with operator.having("slow worker"):
        network.keep_answers(FETCH)
        said = operator.until(lambda one: about_worker(one, "aggregate-0"), "the worker is behind")
        (finding,) = about_worker(said, "aggregate-0")
        assert finding.do.startswith("Wait if it catches up.")
        operator.until(lambda _: any(each_node(deployment, "the node may be well")), "what its nodes do is not known")
        network.release_answers()

    with operator.having("four absences"):
        servers["ingest-00"].kill()
        workers[1].signal(signal.SIGSTOP)
        for one in others.values():
            one.kill()
        controller.kill()
        finding = operator.until_told("serverGone@sdp-facade/ingest-00")
        assert finding.do == "Start it: sdp-facade serve ingest-00."
        operator.follow(finding)
        for alarm in OTHERS_GONE:
            operator.follow(operator.until_told(alarm))
        finding = operator.until_told("controllerSilent@sdp-facade/simulated-controller")
        assert finding.do.startswith("Restart the controller.")
        deployment.controller()
        finding = operator.until_told("workerSilent@sdp-facade/aggregate-1")
        assert finding.do.startswith("End its process if it hangs")
        workers[1].kill()
        operator.follow(finding)

    with operator.having("no worker"):
        for one in deployment.processes.started:
            if one.name.startswith("aggregate") and one.is_alive:
                one.kill()
        finding = operator.until_told("workerGone@sdp-facade")
        operator.until(lambda _: all(each_node(deployment, "the node may be well")), "what the nodes do is not known")
        operator.follow(finding)

    with operator.having("dead node"):
        node.kill()
        finding = operator.until_told(f"streamSilent@ingest/{SKEWED:04d}")
        assert finding.do.startswith("Look at the source of the stream")
        node = deployment.launch("node-again", *last)

    with small_disk(tmp_path) as disk:
        if disk is not None:
            with operator.having("full disk"):
                archive = deployment.launch("archive", "archive", "run", disk, "--only", "heartbeats", "--every", "1s")
                fill(disk)
                finding = operator.until_told("archiveDiskLow@archive/0")
                assert finding.do.endswith("or the archive a larger disk.")
                subprocess.run(["mount", "-o", f"remount,size={10 * _DISK}", str(disk)], check=True)
                operator.until_well()
                assert archive.terminate() == 0

    with operator.having("wrong clock"):
        assert node.terminate() == 0
        node = deployment.launch("node-with-wrong-clock", *last, "--skew", f"{SKEWED}:-60")
        # On a busy machine, the lag of the stream may explain it.
        late = f"streamLate@ingest/{SKEWED:04d}"
        operator.until(lambda _: "behind its time; look at its clock" in operator.texts.get(late, ""), "its clock")
        assert node.terminate() == 0
        node = deployment.launch("node-with-right-clock", *last)

    with operator.having("no broker"):
        deployment.broker.kill()
        begin = deployment.clock.monotonic()
        judged = operator.until(lambda one: one.state == UNKNOWN, "nothing is known")
        assert "Start the brokers." in judged.findings[0].do
        operator.until(lambda _: deployment.clock.monotonic() - begin > _AWAY, "records wait")
        deployment.broker.start()
        operator.until(lambda _: all(each_node(deployment, "sends")), "each node sends again")

    with operator.having("broker hangs"):
        with deployment.broker.frozen():
            judged = operator.until(lambda one: one.state == UNKNOWN, "nothing is known")
            assert "Start the brokers." in judged.findings[0].do
        operator.until(lambda _: all(each_node(deployment, "sends")), "each node sends again")

    wrong = wrongly_said(operator)
    assert not wrong, "\n".join(wrong)


@contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """Have a disk of a few MB; None where nothing can be mounted, as that needs root."""
    disk = folder / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "tmpfs", str(disk)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        print(f"without a full disk: {mounted.stderr}")
        yield None
        return
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def fill(disk: Path) -> None:
    """Write until nothing more fits."""
    with pytest.raises(OSError, match="No space left"):
        (disk / "of-another-program").write_bytes(bytes(_DISK + 1))


def about_worker(judged: Judgement, worker: str) -> list[Finding]:
    """Return what is said of a worker that runs and is behind."""
    return [one for one in judged.findings if worker in one.text and "is behind or has stopped" in one.text]


def each_node(deployment: Deployment, text: str) -> list[bool]:
    """Return for each node whether its Status has a text."""
    return [text in str(deployment.read_one(node_device(node), "Status")) for node in range(NODES)]


_CAUSES = {
    "none": set(),
    "slow worker": set(),
    "four absences": {
        "serverGone@sdp-facade/ingest-00",
        "workerSilent@sdp-facade/aggregate-1",
        "controllerSilent@sdp-facade/simulated-controller",
        *OTHERS_GONE,
    },
    "no worker": {
        "workerGone@sdp-facade",
        "workerSilent@sdp-facade/aggregate-0",
        "workerSilent@sdp-facade/aggregate-1",
    },
    # Its simulator is started again.
    "wrong clock": {f"streamLate@ingest/{SKEWED:04d}", f"streamSilent@ingest/{SKEWED:04d}"},
    "dead node": {f"streamSilent@ingest/{SKEWED:04d}"},
    "full disk": {"archiveDiskLow@archive/0", "archiveFailing@archive/0"},
    # The simulator of the node may connect later than the others.
    "no broker": {f"streamSilent@ingest/{SKEWED:04d}"},
    "broker hangs": {
        f"streamSilent@ingest/{SKEWED:04d}",
        "brokerMissing@sdp-facade/broker-1",
        "partitionsOffline@sdp-facade",
    },
}


def was_heard_late(operator: Operator, alarm: str) -> bool:
    """Return whether the log shows that the process of an alarm was silent for too long after an outage."""
    name = alarm.rpartition("/")[2]
    beats = sorted(
        (one.timestamp()[1] / 1e3, json.loads(one.value() or b"{}").get("component", ""))
        for one in operator.deployment.messages("heartbeats")
    )
    ends = [after for (before, _), (after, _) in pairwise(beats) if after - before > as_seconds(SILENT)]
    own = [at for at, component in beats if component.endswith(name)]
    return any(not any(end <= at <= end + _BACK_WITHIN for at in own) for end in ends)


def wrongly_said(operator: Operator) -> list[str]:
    """Return what was said that was not so, in the order of time."""
    wrong = []
    for accident, alarm in operator.alarms:
        is_late = accident in ("no broker", "broker hangs") and alarm.startswith(_ABSENCES)
        if alarm in _CAUSES[accident] or alarm.startswith(_BUSY) or (is_late and was_heard_late(operator, alarm)):
            continue
        wrong.append(f"{accident}: {alarm}")
    silent = ("wrong clock", "dead node", "no broker", "broker hangs")
    """Where the simulator of a node is started again, or may be the last one that connects again, it sends nothing."""
    for (accident, text), time in operator.said.items():
        shown = text.partition(" -> ")[0]
        if (
            ("clock" in shown and accident != "wrong clock")
            or (re.search("sends no records|is silent since", shown) and accident not in silent)
            or ("ingest.summary lags" in shown and "device server" not in shown)
            or ("ingest.heaps lags" in shown and "workers read it" not in shown)
        ):
            wrong.append(f"{utc_seconds(round(time * 1e6))} {accident}: {text}")
    return wrong
