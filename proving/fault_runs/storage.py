"""The fault run of the storage: the bus loses what it had confirmed, and administrators do what they should not."""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import tango
import typer
from rich.table import Table

from facade.flows.alerts.messages import Alert, alert_record
from facade.flows.tables.messages import segment_record
from facade.infra.processes import Process
from facade.messages import TableSegment
from proving.deployment import Deployment
from proving.fault_runs.frame import Account, FaultRun, Folder, Seed, play
from proving.fault_runs.storage_acts import Readers, StorageActs
from proving.fault_runs.storage_book import NAMES, Book, Finding, Ledger, Verdict
from proving.fault_runs.witness import Sent, Stream, Witness, read_log

HEAPS, ALERTS, CALIBRATION = "ingest.heaps", "alerts", "calibration"
POWER_CUT = "unclean kill of the broker"
_WORKERS, _ASSEMBLER = ("aggregate-0", "aggregate-1"), "assembler"
_READERS: Readers = {
    HEAPS: ("aggregate", _WORKERS),
    CALIBRATION: ("tables-assemble", (_ASSEMBLER,)),
    ALERTS: ("", ("alerts",)),
    "ingest.summary": ("", ("ingest-00", "control")),
}
_SERVERS = ("control", "ingest-00", "alerts", "calibration")
_NODES = 4
_SENDS = (0.5, 2.0)
"""Records flow for so long before an act, and after it [s]."""
_SETTLED = 1.0
"""Totals that are right for so long stay so [s]."""
_STANDS_STILL = 30.0
"""Totals that are not right, and have not changed for so long, are wrong [s]."""
_TREATED = 15.0
"""An operator deals with what holds totals up for so long [s]."""
_LAST_WITHIN = 600.0
"""Totals that cannot be read, or are behind after the last acts, are waited for so long; then they are wrong [s]."""
_WITHIN = 120.0
"""Totals that change for longer are judged as they are [s]."""
_LAGS = {
    "heaps, SdpBus": ("ingestHeapsLag",),
    "heaps, nodes": ("ingestHeapsLag", "ingestSummaryLag"),
    "segments": ("calibrationLag",),
}
"""Attributes of SdpBus that say that a total is not all of it yet."""
_TOPICS = {
    "heaps, SdpBus": (HEAPS, "accounts"),
    "heaps, nodes": (HEAPS, "ingest.summary"),
    "alerts": (ALERTS, "snapshots"),
    "segments": (CALIBRATION, "accounts"),
}
"""What is said of these topics names a deviation of a total."""
_QUICK = (3, 3)


class StorageFaultRun(FaultRun):
    """One run: an act after the other, judged when records have stopped and all has settled."""

    faults = ()
    between = (0.0, 0.0)

    def __init__(self, deployment: Deployment, *, kills: int, acts: int, together: int, seed: int) -> None:
        super().__init__(deployment, seed)
        self.left = 0
        self._together = together
        self._storage = StorageActs(deployment, self.chance, _READERS)
        names = [*self._storage.acts]
        self._due = [POWER_CUT] * kills + [names[number % len(names)] for number in range(acts)]
        self.chance.shuffle(self._due)
        self._all = len(self._due)
        self._book = Book()
        self._aborted: list[str] = []
        """Partitions of transactions that hung, and were aborted."""
        self._said: set[str] = set()
        self._bus, self._nodes = deployment.devices("SdpBus")[0], deployment.devices("SdpIngestNode")
        self._alerts = deployment.devices("SdpAlerts")[0]

    def parts(self) -> Mapping[str, Callable[[], Process]]:
        """Return workers and device servers."""
        deployment = self.deployment
        workers = {name: lambda slot=name[-1:]: deployment.worker(slot) for name in _WORKERS}
        servers = {
            name: lambda name=name: deployment.server(name)
            for name in ("control", "ingest-00", "alerts", "calibration")
        }
        return {**workers, **servers, _ASSEMBLER: lambda: deployment.launch(_ASSEMBLER, "tables", "assemble")}

    def begin(self) -> None:
        """Let records flow, and wait until all of the first ones are shown."""
        settings, clock = self.deployment.settings, self.clock
        prefix = settings.prefix
        self._streams = {
            HEAPS: Stream(prefix + HEAPS, lambda number: _heap(number, self._now_us()), each=1, batch=16),
            ALERTS: Stream(prefix + ALERTS, lambda number: _alert(number, self._now_us()), each=8),
            CALIBRATION: Stream(prefix + CALIBRATION, lambda number: _table(number, self._now_us()), each=8),
        }
        self._ledgers = {"heaps, SdpBus": Ledger(HEAPS), "heaps, nodes": Ledger(HEAPS), "alerts": Ledger(ALERTS)}
        self._ledgers["segments"] = Ledger(CALIBRATION)
        self._witness = Witness(settings.bootstrap, self._streams, clock)
        self._flow()
        self._judge([("start", "")], [])

    def step(self) -> bool:
        """Do some acts, one after the other, and judge them."""
        known, began = len(self._book.lines), self.clock.monotonic()
        done, said = list[tuple[str, str]](), list[str]()
        for _ in range(min(self._together, len(self._due))):
            act = self._due.pop()
            self._flow()
            done.append((act, self._storage.power_cut() if act == POWER_CUT else self._storage.do(act)))
            self.revive()
            self._flow()
            said += self._news()
        verdict = self._judge(done, said)
        took = self.clock.monotonic() - began
        acts = ", ".join(f"{act} ({did})" for act, did in done)
        self.progress.step(f"  {self._all - len(self._due)}/{self._all} {acts}: {verdict}, {took:.0f} s")
        for line in self._book.lines[known:]:
            self.progress.step(f"    {line}")
        if not self._due:
            self._witness.close()
        return bool(self._due)

    def in_words(self) -> str:
        """Say how far the run is."""
        sent = ", ".join(f"{stream.number:,} {topic}" for topic, stream in self._streams.items())
        return f"{self._all - len(self._due)} of {self._all} acts; sent {sent}"

    def account(self) -> Account:
        """Return all verdicts."""
        table = Table("act", "times", *Verdict, title="What became of the totals")
        for act, counts in sorted(self._book.verdicts.items()):
            table.add_row(act, f"{counts.total()}", *(f"{counts[one]}" for one in Verdict))
        rows: list[tuple[str, int | str]] = [
            *((f"records on {topic}, confirmed", len(one.confirmed)) for topic, one in self._streams.items()),
            *((f"shown of {name}", ledger.shown) for name, ledger in self._ledgers.items()),
            ("confirmed and lost before anyone had read them", self._book.unread),
            ("transactions that hung, aborted with Kafka's tool", len(self._aborted)),
            ("longest absence of the broker", f"{self._storage.broker_away:.1f} s"),
        ]
        return Account(rows, self._book.silent, table)

    def _now_us(self) -> int:
        return round(self.clock.now() * 1e6)

    def _flow(self) -> None:
        """Let records flow for a while."""
        self._witness.resume()
        self.clock.sleep(self.chance.uniform(*_SENDS))

    def _judge(self, done: Sequence[tuple[str, str]], said: Sequence[str]) -> Verdict:
        """Wait until all has settled, compare each total, and write down what was said meanwhile."""
        self._witness.pause()
        findings = self._settle()
        return self._book.enter(done, findings, [*said, *self._news()])

    def _settle(self) -> list[Finding]:
        """Wait until all totals are right, or do not change any more."""
        logs = {topic: self._log(topic) for topic in self._streams}
        confirmed = {topic: set(stream.confirmed) for topic, stream in self._streams.items()}
        shown: dict[str, int] = {}
        began = moved = self.clock.monotonic()
        is_last, treated = not self._due, False
        while True:
            logs[ALERTS] = self._log(ALERTS)  # what the facade notices, it puts there
            if (now := self._shown()) != shown:
                shown, moved = now, self.clock.monotonic()
            findings = self._findings(confirmed, logs, shown)
            is_right = bool(shown) and not any(one.wrong or one.missing for one in findings)
            is_behind = any(one.is_behind for one in findings)
            quiet, lasts = self.clock.monotonic() - moved, self.clock.monotonic() - began
            if (
                quiet > _SETTLED
                if is_right
                else self._is_enough(quiet, lasts, waits=not shown or (is_last and is_behind))
            ):
                break
            if quiet > _TREATED and not treated and is_behind:
                treated = True
                self._aborted += self._storage.abort_hanging()
            self.revive()
            self.clock.sleep(0.3)
        if is_last:  # nothing comes that could still make it good
            findings = [replace(one, is_behind=False) for one in findings]
        for one in findings:
            if not (one.wrong < 0 and one.is_behind):  # else what is not counted yet is judged after the next act
                ledger = self._ledgers[one.total]
                ledger.close(confirmed[ledger.topic], logs[ledger.topic], shown[one.total])
        return findings

    @staticmethod
    def _is_enough(quiet: float, lasts: float, *, waits: bool) -> bool:
        return lasts > _LAST_WITHIN if waits else quiet > _STANDS_STILL or lasts > _WITHIN

    def _findings(
        self, confirmed: Mapping[str, set[bytes]], logs: Mapping[str, Counter[bytes]], shown: Mapping[str, int]
    ) -> list[Finding]:
        return [
            Finding(
                name,
                *ledger.judge(confirmed[ledger.topic], logs[ledger.topic], shown[name]),
                is_behind=self._is_behind(name),
                topics=_TOPICS[name],
            )
            for name, ledger in self._ledgers.items()
            if name in shown
        ]

    def _is_behind(self, total: str) -> bool:
        """Return whether a lag that a total depends on is not 0, or not known."""
        try:
            return any(_read(self.deployment.proxy(self._bus), _LAGS.get(total, ())))
        except (tango.DevFailed, ValueError):
            return True

    def _log(self, topic: str) -> Counter[bytes]:
        settings = self.deployment.settings
        return Counter(value for _, value in read_log(settings.bootstrap, settings.prefix + topic, self.clock))

    def _shown(self) -> dict[str, int]:
        """Return all totals; empty: a device does not answer, or says that its value is not valid."""
        try:
            names = ("ingestHeapsConsumed", "alertsConsumed", "calibrationConsumed")
            heaps, alerts, segments = _read(self.deployment.proxy(self._bus), names)
            nodes = [_read(self.deployment.proxy(node), ("heapsTotal", "heapsLate")) for node in self._nodes]
        except (tango.DevFailed, ValueError):
            return {}
        return dict(zip(self._ledgers, (heaps, sum(map(sum, nodes)), alerts, segments), strict=True))

    def _news(self) -> list[str]:
        """Return what SdpBus and the alarms say of partitions and offsets, and have not said before."""
        try:
            said = {str(self.deployment.proxy(self._bus).status())}
            said.add(str(self.deployment.proxy(self._bus).read_attribute("lastError").value))
            alarms = msgspec.json.decode(self.deployment.proxy(self._alerts).command_inout("GetAlarms"))
            said |= {str(alarm["text"]) for alarm in alarms}
        except tango.DevFailed:
            return []
        lines = {one for text in said for line in text.splitlines() for one in line.split(" | ") if NAMES.search(one)}
        news, self._said = sorted(lines - self._said), self._said | lines
        return news


def _read(proxy: Any, names: Sequence[str]) -> list[int]:
    """Return values of attributes.

    Raises
    ------
    ValueError
        One of them is not valid.
    """
    values = [one.value for one in proxy.read_attributes(list(names))] if names else []
    if None in values:
        raise ValueError(f"{names}: {values}")
    return [int(value) for value in values]


def _heap(number: int, now_us: int) -> Sent:
    node = number % _NODES
    heap = {"schema": "heap/1", "node": node, "scan_id": 7, "seq": number // _NODES, "time": now_us}
    heap |= {"channel_start": 0, "channel_count": 128, "received": 512, "lost": 0, "late": 0}
    return Sent(b"%d" % node, msgspec.json.encode(heap | {"flagged_fraction": 0.25, "latency": 0.002}))


def _alert(number: int, now_us: int) -> Sent:
    alert = Alert(
        condition="receiveOverrun", source="receive/1", severity="WARNING", text=f"the {number}th",
        state="CLEARED" if number % 2 else "ACTIVE", raised_at=now_us, sequence=number,
    )  # fmt: skip
    record = alert_record(alert)
    return Sent(record.key or b"", record.value or b"")


def _table(number: int, now_us: int) -> Sent:
    content = b"table %d of %d" % (number, now_us)
    header = TableSegment(
        table=f"t{number}", product=f"subarray/01/fault-{number % 100}", kind="sky-model", index=0, count=1,
        content_type="application/x-storage-fault", size=len(content), sha256=hashlib.sha256(content).hexdigest(),
        sent_at=now_us,
    )  # fmt: skip
    record = segment_record(header, content)
    return Sent(record.key or b"", content, record.headers)


def storage_faults(
    kills: Annotated[int, typer.Option(min=0, help="Unclean kills of the broker.")] = 30,
    acts: Annotated[int, typer.Option(min=0, help="Acts of administrators, full disks and snapshots.")] = 24,
    together: Annotated[int, typer.Option(min=1, help="So many, one after the other, are judged together.")] = 1,
    seed: Seed = 1,
    quick: Annotated[bool, typer.Option("--quick", help=f"Only {_QUICK[0]} kills and {_QUICK[1]} acts.")] = False,
    folder: Folder = Path(".run"),
) -> None:
    """Let the broker lose the ends of its logs, set groups, topics and snapshots wrong, and account for each total.

    The exit code is 1 when a total is neither exact nor its deviation named by SdpBus or an alarm.

    Example: sdp-facade storage-faults --quick
    """
    kills, acts = _QUICK if quick else (kills, acts)
    play(
        lambda deployment: StorageFaultRun(deployment, kills=kills, acts=acts, together=together, seed=seed),
        f"{kills} unclean kills and {acts} acts, seed {seed}",
        "each total is exact, or its deviation was named before anyone asked",
        folder,
        "storage-faults",
        nodes=_NODES,
        partitions=None,
    )
