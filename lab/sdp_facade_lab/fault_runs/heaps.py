"""Heaps through kills: notifications are sent while workers, device servers and broker are killed.

Sent: the report of the simulator. Expected: each notification in one count of its node. Observed: SdpIngestNode,
SdpMaster and SdpBus.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import ClassVar

from facade.flows.telemetry.simulator.ingest import read_report
from facade.infra.processes import Process
from facade.kernel.bus.offsets import ACCOUNTS, POSITIONS
from sdp_facade_clients.terminal import BUS, MASTER, NODE
from sdp_facade_lab.balance import Balance, Gaps, Tally
from sdp_facade_lab.fault_runs.frame import BROKER, READY_WITHIN, RESET, SERVER, FaultRun, Size, process_name
from sdp_facade_lab.heap_account import STREAMS, disagreements, settled_account
from sdp_facade_lab.tango_side import TangoSide

HEAPS, SUMMARIES = "ingest.heaps", "ingest.summary"
_SIMULATOR = "simulator"
_NAMED = ("Skipped", "Overlap", "Corrected")
"""Figures that name missing or refused offsets."""
_WORKERS = ("worker 0", "worker 1")
_SERVERS = {f"{SERVER} {instance}": instance for instance in ("control", "ingest-00")}


class HeapFaultRun(FaultRun):
    """One run of the heap notifications."""

    unit, all_is_well = "heaps", "each heap is in one count of its node"
    full, short = Size(500_000, 5), Size(30_000, 1)
    settings: ClassVar = {"nodes": 4, "partitions": None}
    faults = (*_WORKERS, *_SERVERS, BROKER, RESET)
    group, members = "aggregate", _WORKERS
    between = (1.0, 4.0)
    evidence = (HEAPS, SUMMARIES, ACCOUNTS, POSITIONS)
    rate: ClassVar[int] = 2_000
    """Of all nodes together [heaps/s]."""

    def prepare(self) -> None:
        self._report = self.deployment.folder / "sent.json"
        self._gaps = Gaps(self.clock)
        """Times without a summary."""

    def parts(self) -> Mapping[str, Callable[[], Process]]:
        made = self.deployment
        workers = {
            name: partial(made.launch, process_name(name), "aggregate", "--slot", name[-1], login="aggregate")
            for name in _WORKERS
        }
        servers = {name: partial(made.server, instance, name=process_name(name)) for name, instance in _SERVERS.items()}
        return {**workers, **servers}

    def begin(self) -> None:
        made = self.deployment
        self.demand(lambda: all(map(made.answers, _SERVERS.values())), READY_WITHIN, SERVER)
        devices = {name: made.devices(name) for name in (BUS, MASTER, NODE)}
        self._tango = TangoSide(made.tango_host, devices, made.icd)
        self._reader = self.open_reader(SUMMARIES)
        words = ("--rate", self.rate, "--count", self.count, "--seed", self.seed, "--report", self._report)
        self._simulator = made.launch(_SIMULATOR, "simulate", "ingest", *words, ends=True, login="ingest-node")

    def step(self) -> bool:
        if self._reader.take(10_000, 0.0):
            self._gaps.hear()
        if self._simulator.is_alive or self.left:
            self.moved = self.clock.monotonic()
            return True
        totals = self._tango.totals()
        return not self._tango.is_drained(self._sent()) and not self.is_stuck(sum(totals.values()))

    def stop_sending(self) -> None:
        self._simulator.ask()

    def count_arrived(self) -> int:
        return sum(self._tango.totals().values())

    def in_words(self) -> str:
        return f"{self._sent():,} heaps sent, {self.count_arrived():,} counted at their nodes"

    def account(self) -> Balance:
        sent = read_report(self._report)
        lines = settled_account(self.progress, sent, self._tango.found)
        made = Balance(wrong=disagreements(sent, lines))
        counted = [line for line in lines if line.where.startswith("node ") and line.what == "heapsTotal"]
        off = [(line.found or 0) - line.expected for line in counted]
        lost, doubled = -sum(one for one in off if one < 0), sum(one for one in off if one > 0)
        found = sum(line.found or 0 for line in counted)
        made.rows += [
            ("heaps sent", sent.sent),
            ("... counted at their nodes", found),
            ("figures compared", len(lines)),
            ("longest silence of the sums", f"{self._gaps.longest:.1f} s"),
        ]
        if made.wrong:
            names = [stream + figure for stream in STREAMS.values() for figure in _NAMED]
            shown = self._tango.bus(*names)
            made.rows += [(name, str(shown[name].value) if name in shown else "-") for name in names]
        made.tallies["heaps"] = Tally(sent.sent, found, lost, doubled, self._gaps.found)
        return made

    def _sent(self) -> int:
        return read_report(self._report).sent if self._report.exists() else 0
