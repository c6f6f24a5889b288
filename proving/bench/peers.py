"""Another way on the same records: the facade that SDP memo 052 sketches.

It is shown at its best: no validation, one figure per message instead of all of the ICD's, no transactions, no
subscribers, no database. The multiple is therefore a lower bound.
"""

import json
import sys
from pathlib import Path

import msgspec
import tango
from tango.server import Device, attribute, run

from facade.infra import tools
from facade.infra.ports import choose_port
from proving import gauges
from proving.bench.load import TOPIC, fill_topic
from proving.bench.report import BarVerdict, BenchOutcome, ratios
from proving.bench.throughput import run_worker
from proving.bench.throughput_roles import RoleTiming
from proving.deployment import Deployment
from proving.roles import RoleContext, RoleProcess, command_line
from proving.testbed import Testbed

DEVICE = "bench/sdp/1"

_PATIENCE_MS = 15_000


class PeerTiming(msgspec.Struct, frozen=True, kw_only=True):
    """How fast another way was."""

    records: int
    seconds: float
    cpu: float
    """Of the process that consumes [s]."""

    @property
    def rate(self) -> float:
        """Return the speed [records/s]."""
        return self.records / self.seconds

    @property
    def rate_per_core(self) -> float:
        """Return the speed by the processor time of the process [records/s]."""
        return self.records / self.cpu


class SdpNode(Device):
    """The device that section 11 of SDP memo 052 sketches: one attribute that a client writes."""

    def init_device(self) -> None:
        super().init_device()
        self._value = 0
        self.set_change_event("widgetx", True, False)

    @attribute(dtype="DevLong64", access=tango.AttrWriteType.READ_WRITE)
    def widgetx(self) -> int:
        return self._value

    @widgetx.write
    def set_widgetx(self, value: int) -> None:
        self._value = value
        self.push_change_event("widgetx", value)


def sink(context: RoleContext, *, port: int) -> None:
    """Serve the device to which the facade of SDP memo 052 writes, without a database."""
    run((SdpNode,), args=_without_database("SdpNode", port), post_init_callback=context.announce)


def write_one_by_one(context: RoleContext, *, device: str, records: int) -> PeerTiming:
    """Do what SDP memo 052 sketches, line by line: one attribute write per message."""
    from kafka import KafkaConsumer  # of the folder that the measurement puts on the path

    sdp_node = tango.DeviceProxy(device)
    consumer = KafkaConsumer(
        context.settings.prefix + TOPIC,
        bootstrap_servers=context.settings.bootstrap,
        auto_offset_reset="earliest",
        consumer_timeout_ms=_PATIENCE_MS,
    )
    done, began, cpu = 0, 0.0, 0.0
    for message in consumer:
        if not done:
            began, cpu = context.clock.monotonic(), gauges.own_cpu()
        msg = json.loads(str(message.value, "utf-8"))
        sdp_node.widgetx = msg["seq"]
        done += 1
        if done > records:
            break
    return _timing(context, done, began, cpu)


def _timing(context: RoleContext, done: int, began: float, cpu: float) -> PeerTiming:
    return PeerTiming(records=done - 1, seconds=context.clock.monotonic() - began, cpu=gauges.own_cpu() - cpu)


def _without_database(server: str, port: int) -> list[str]:
    return [server, "bench", "-nodb", "-dlist", DEVICE, "-ORBendPoint", f"giop:tcp:127.0.0.1:{port}"]


OURS = "worker"
MEMO = {f"the facade of SDP memo 052, kafka-python {version}": version for version in ("2.3.3", "3.0.12")}

Round = dict[str, PeerTiming]
"""What each way needed, in one round."""


def peers(testbed: Testbed, *, quick: bool) -> BenchOutcome:
    """Compare our worker with other ways, one after the other, again and again."""
    records, memo_records = (1_000_000, 10_000) if quick else (4_000_000, 40_000)
    rounds = 1 if quick else 3
    found: list[Round] = []
    with testbed.deployment("peers") as deployment:
        fill_topic(deployment, records)
        for number in range(rounds):
            made: Round = {OURS: of_worker(run_worker(deployment, records))}
            for what, version in MEMO.items():
                made[what] = _memo(deployment, memo_records, version)
            found.append(made)
            testbed.progress.step(f"  round {number + 1} of {rounds}")
    return BenchOutcome(
        name="peers",
        what="our worker beside other ways of building the facade, notifications/s on the same topic",
        verdicts=verdicts(found),
    )


def verdicts(found: list[Round]) -> tuple[BarVerdict, ...]:
    """Set our worker beside each other way: by the wall clock, and by the processor time of the process."""
    made = []
    for peer in (what for what in found[0] if what != OURS):
        wall = ratios((one[OURS].rate, one[peer].rate) for one in found)
        core = ratios((one[OURS].rate_per_core, one[peer].rate_per_core) for one in found)
        made.append(BarVerdict(what=f"worker / {peer}, records/s", bar="", found=str(wall)))
        made.append(BarVerdict(what=f"worker / {peer}, records/s per core", bar="", found=str(core)))
    return tuple(made)


def of_worker(timing: RoleTiming) -> PeerTiming:
    """Return what a worker needed, as of a peer."""
    cpu = timing.cpu_per_million * timing.records / 1e6
    return PeerTiming(records=timing.records, seconds=timing.seconds, cpu=cpu)


def _kafka_python(version: str, report: tools.Notify) -> Path:
    """Return a folder with this version, which is installed there the first time."""

    def install(folder: Path) -> None:
        report(f"  kafka-python {version}: pip installs it (once)")
        argv = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder)]
        tools.run([*argv, f"kafka-python=={version}"], what=f"installing kafka-python {version}")

    return tools.installed_once(f"kafka-python-{version}", install, report)


def _memo(deployment: Deployment, records: int, version: str) -> PeerTiming:
    port, library = choose_port(), str(_kafka_python(version, deployment.progress.step))
    sink = deployment.play("sink", port=port)
    deployment.await_ready(sink)
    try:
        address = f"tango://127.0.0.1:{port}/{DEVICE}#dbase=no"
        argv = command_line("memo", deployment.folder / "memo.log", {"device": address, "records": records})
        environment = {**deployment.environment, "PYTHONPATH": library}
        return deployment.result(
            deployment.processes.start(RoleProcess, "memo", argv, environment, ends=True), PeerTiming
        )
    finally:
        sink.stop(2.0)
