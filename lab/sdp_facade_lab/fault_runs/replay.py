"""A night with kills, played again: the results derived from its archive are compared with those of the night.

Sent: commands as in `sdp_facade_lab.fault_runs.commands`, heaps with faults, alerts, actions of an operator, tables,
logs, quality metrics, processing blocks and adminMode, while every part is killed, the archive worker too. Expected:
a whole archive, and the same windows, outcomes, tables, alarm states, sums and balances. Observed: the archive of the
replay, made by workers and device servers that take their time from it.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Final

import msgspec
import tango

from facade.flows.alerts.messages import STATES
from facade.flows.alerts.source import AlertSource
from facade.flows.logs.messages import LOGS
from facade.infra.processes import Process
from facade.kernel.bus.kafka.bus import KafkaBus
from facade.kernel.bus.kafka.producer import KafkaStreamWriter, KafkaWriter
from facade.kernel.bus.port import BusHealth
from facade.kernel.clock import NEVER, as_duration, utc_seconds
from facade.sdp.messages import AlertState, ReplayPosition
from sdp_facade_lab.balance import Balance
from sdp_facade_lab.fault_runs.blocks import tell_blocks
from sdp_facade_lab.fault_runs.commands import CONTROLLER, CommandFaultRun
from sdp_facade_lab.fault_runs.frame import BROKER, READY_WITHIN, SERVER, Size, process_name
from sdp_facade_lab.recorded_night import WORKER, RecordedNight

_ARCHIVE: Final = WORKER.replace("-", " ")
_WORKERS: Final[Mapping[str, tuple[Any, ...]]] = {
    "worker 0": ("aggregate", "--slot", 0),
    "worker 1": ("aggregate", "--slot", 1),
    "tables worker": ("tables", "assemble", "--slot", 0),
    "logs worker": ("logs", "aggregate", "--slot", 0),
}
_SERVERS: Final = {
    "device server of SdpMaster": "control",
    "device server of SdpAlerts": "alerts",
    "device server of ingest nodes": "ingest-00",
}
"""Device servers that are killed, besides the one with the subarrays."""
_OTHERS: Final = ("calibration", "quality", "logs")
_CLASSES: Final = tuple(f"Sdp{one}" for one in "Master Bus Subarray Alerts IngestNode Calibration Quality Logs".split())
_SENDERS: Final[Mapping[str, tuple[Any, ...]]] = {
    "heaps": (
        *("ingest", "--nodes", 2, "--rate", 1000, "--gaps", 0.001, "--duplicates", 0.001, "--disorder", 0.001),
        *("--late", 0.001, "--ahead", 0.001, "--garbage", 0.001),
    ),
    "buffers": ("telemetry", "ingest.buffers", "--rate", 20),
    "alert-sources": ("alerts", "--rate", 5, "--unknown", 0.1, "--garbage", 0.02),
    "metrics": ("quality", "--rate", 2, "--antennas", 8),
    "gains": ("calibration", "--every", 3, "--megabytes", 2),
}
_SPEED: Final = "10"
_BLOCKS = 50_000
"""More than are told until the night ends."""
_ACTS_EACH = 1.0
"""Time between two actions of the operator, and between two bursts of logs [s]."""
_LINES = 60
_NEEDED: Final = (
    *("windows of ingest.heaps", "windows of ingest.buffers", "command outcomes", "alarm states", "tables"),
    *("sums of logs", "balances"),
)
"""Kinds of results that each night has."""
_SETTLED_WITHIN = 300.0
"""Longer than any delay of an alarm [s]."""
_LAST = ("nightIsOver", "prove/replay")
"""Condition and source of the last alarm: a server that shows it has all alerts before it."""


class ReplayFaultRun(CommandFaultRun):
    """One night and its replay."""

    unit, all_is_well = "commands in a night", "the archive is whole, and all that is derived of the night comes again"
    full, short = Size(600, 3), Size(100, 1)
    settings: ClassVar = {"nodes": 2, "subarrays": 4, "partitions": None, "without": "mirror"}
    faults = (SERVER, CONTROLLER, BROKER, _ARCHIVE, *_WORKERS, *_SERVERS)

    def prepare(self) -> None:
        super().prepare()
        self.between = (1.0, 4.0)
        folder = self.deployment.folder.parents[1] / "replay-night"  # what differs is looked at in the files
        shutil.rmtree(folder, ignore_errors=True)
        self._night = RecordedNight(self.deployment, folder)
        (self._alerts,), (self._master,) = map(self.deployment.devices, ("SdpAlerts", "SdpMaster"))
        self._shown = self.deployment.devices(*_CLASSES)
        self._act_at = 0.0
        self._acted = self._logged = 0

    def parts(self) -> Mapping[str, Callable[[], Process]]:
        made = self.deployment
        servers = {**_SERVERS, **{name: name for name in _OTHERS}}
        return {
            **super().parts(),
            **{name: partial(made.launch, process_name(name), *words) for name, words in _WORKERS.items()},
            **{name: partial(made.server, one, name=process_name(name)) for name, one in servers.items()},
            _ARCHIVE: self._night.record,
        }

    def begin(self) -> None:
        for name, words in _SENDERS.items():
            self.deployment.launch(name, "simulate", *words, "--seed", self.seed, ends=True)
        journal = str(self.deployment.folder / "blocks.txt")
        self.deployment.play(
            tell_blocks, name="blocks", journal=journal, subarray=1, seed=self.seed, records=_BLOCKS, interval=0.02
        )
        self._shipper = KafkaStreamWriter(self.deployment.connection, health=BusHealth(), client="shipper")
        super().begin()

    def step(self) -> bool:
        if self.clock.monotonic() >= self._act_at:
            self._act_at = self.clock.monotonic() + _ACTS_EACH
            self._acted += self._act()
            self._log()
        self._shipper.poll()
        return super().step()

    def _log(self) -> None:
        numbers = range(self._logged, self._logged + _LINES)  # of three nodes in turn, each without a hole
        self._logged += _LINES
        severities = self.chance.choices((11, 12, 14, 15), k=_LINES)
        lines = [
            f'<{severity}>1 - node-{number % 3} flagger 1 - [meta sequenceId="{number // 3 + 1}"] line'.encode()
            for number, severity in zip(numbers, severities, strict=True)
        ]
        self._shipper.send_many(LOGS, [b"r01/node-%d" % (number % 3) for number in numbers], lines)

    def _act(self) -> bool:
        """Do something as an operator; a killed device server does not answer."""
        try:
            self.deployment.proxy(self._master).write_attribute("adminMode", self._acted % 2 * 2)
            alarm = self.chance.choice(self.deployment.alarms(self._alerts))
            about = {"condition": alarm["condition"], "source": alarm["source"], "operator": "Ada", "comment": "seen"}
            more = self.chance.choice(
                (
                    ("Acknowledge", {"occurrence": alarm["occurrence"]}),
                    ("Shelve", {"duration": self.chance.choice((5.0, 3600.0))}),
                    ("Reset", {}),
                )
            )
            self.deployment.proxy(self._alerts).command_inout(more[0], json.dumps(about | more[1]))
        except (tango.DevFailed, TypeError, IndexError):  # PyTango's TypeError: the device server is just starting
            return False
        return True

    def account(self) -> Balance:
        made = super().account()
        self._end()
        found = self._night.close()
        made.wrong += [f"archive: {fault}" for one in found for fault in one.faults]
        servers = ["subarray", *_SERVERS.values(), *_OTHERS]
        comparison, left = self._night.replay(_SPEED, _NEEDED, servers, self._is_shown)
        made.wrong += left
        for kind in comparison.kinds:
            made.rows.append((f"compared: {kind.name}", kind.compared))
            made.wrong += [f"{kind.name}: {difference}" for difference in kind.differences]
            if kind.differing > len(kind.differences):
                made.wrong.append(f"{kind.name}: {kind.differing:,} differ in all")
        self.progress.step(f"both archives stay in {self._night.original.parent}")
        made.rows += [
            ("actions of the operator", self._acted),
            ("records in the archive", sum(one.records for one in found)),
        ]
        return made

    def _end(self) -> None:
        """End all but the archive worker; the device server of the alerts last, when it has all of them."""
        processes = self.deployment.processes
        alerts = process_name("device server of SdpAlerts")
        senders = [*_SENDERS, "blocks"]
        others = [process_name(part) for part in self.parts() if process_name(part) not in (alerts, WORKER)]
        for name in senders:
            processes.stop(name)
        self._shipper.flush(READY_WITHIN)
        self._night.read(self.deployment, "aggregate", "tables-assemble", "logs-aggregate")
        # A delay that ends while device servers end may be in one of the archives only.
        self.progress.demand(self._is_settled, _SETTLED_WITHIN, "no delay of an alarm runs")
        for name in others:
            processes.stop(name)
        writer = KafkaWriter(self.deployment.connection, health=BusHealth(), client="night")
        AlertSource(_LAST[1], writer, self.clock, timeout=READY_WITHIN).raise_alert(_LAST[0], "INFO", "all has ended")
        self.progress.demand(self._has_last_alarm, READY_WITHIN, "the last alarm is shown")
        processes.stop(alerts)

    def _is_settled(self) -> bool:
        newest = {one.key: one.value for one in KafkaBus(self.deployment.connection, client="night").read_all(STATES)}
        alarms = [msgspec.json.decode(value, type=AlertState) for value in newest.values() if value]
        soon = self.clock.now_us() + as_duration(_SETTLED_WITHIN)
        return not any(one.pending or NEVER < one.shelved_until < soon for one in alarms)

    def _has_last_alarm(self) -> bool:
        try:
            return any((one["condition"], one["source"]) == _LAST for one in self.deployment.alarms(self._alerts))
        except tango.DevFailed:
            return False

    def _is_shown(self, position: ReplayPosition) -> bool:
        """Return whether all devices show the end of the replay, and the last alarm."""
        begin = f"REPLAY {utc_seconds(position.time)} "
        said = [str(self.deployment.value(one, "Status")) for one in self._shown]
        return all(one.startswith(begin) for one in said) and self._has_last_alarm()
