"""Every process is replaced by one of the next release, one by one, while heaps, buffers, alerts and commands flow.

The next release has a further field in each message, which its processes write from the start, and a new version of
one: `receive-buffer/2`. Its writers come when all readers are replaced, and send beside those of `receive-buffer/1`. On
topics that no process of the run writes, one record of either release is sent with each replacement. Sent: reports of
the senders, and the journal of the callers. Expected: each record in one total, no dead letter, each alert once at a
client, and no command refused while its device server was there. Observed: devices, topics, and the client.
"""

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec

from facade.flows.alerts.messages import ALERTS, Action, Alert, decode_alert_or_action
from facade.flows.alerts.simulator.stream import read_alert_report
from facade.flows.commands.messages import ACKS, AckMessage, decode_ack
from facade.flows.commands.outcomes import COMPLETED
from facade.flows.telemetry.simulator.ingest import read_report
from facade.flows.telemetry.simulator.telemetry_cli import TelemetryReport
from facade.infra.processes import Process
from facade.kernel.bus.dead_letters import TOPIC as DEAD_LETTERS
from facade.kernel.bus.kafka.bus import KafkaBus
from facade.kernel.bus.port import Record
from facade.kernel.clock import as_seconds
from facade.kernel.console import table
from facade.kernel.errors import InfraError
from sdp_facade_lab.balance import Balance
from sdp_facade_lab.command_account import CallLine
from sdp_facade_lab.fault_runs.alerts import FollowerReport, digest, follow_alerts, read_entries
from sdp_facade_lab.fault_runs.callers import read_calls
from sdp_facade_lab.fault_runs.commands import CONTROLLER, CommandFaultRun
from sdp_facade_lab.fault_runs.frame import READY_WITHIN, Size
from sdp_facade_lab.fault_runs.fuzz_records import documents, record
from sdp_facade_lab.testbed import WORKERS

_SOURCE = Path(__file__).parents[3]
_BUFFERS, _NEXT_BUFFERS = "buffers", "buffers-2"
_HEAPS, _NEXT_HEAPS = "heaps", "heaps-2"
_NODE = "ingest-node"
"""Role of the senders of heaps and buffers."""
_COPIED, _LINKED = (
    ("facade", "schemas"),
    ("clients/sdp_facade_clients", "devices", "lab/sdp_facade_lab", "sdp_facade_sdk"),
)
_NEXT = "0.1000.0"
"""Version of the next release's interface."""
_FURTHER = f"""
    further: str = __import__("msgspec").field(default_factory=lambda: "{_NEXT}")
    \"\"\"Always written, as it has no default that could be left out.\"\"\"
"""
_BY_HAND: Final[Mapping[str, str]] = {
    "alerts": "alert",
    "flagging": "flagging",
    "storage": "storage",
    "quality": "metric",
    "calibration": "table-segment",
    "processing-blocks": "processing-block",
    "reservations": "reservation",
}
"""Messages by topic of which the run sends a record of either release with each replacement."""
_BY_PROCESSES: Final = "command-acks", "heartbeats", "state"
"""Topics that the processes which were replaced write all the time."""
_SOURCES: Final = "rolling/present", "rolling/next"
_WORKERS: Final = {f"aggregate-{slot}": slot for slot in range(WORKERS)}
_SERVERS: Final = ("alerts", "calibration", "control", "ingest-00", "ingest-01", "quality", "subarray")
_SERVED_BY = "subarray"
"""Instance with the devices that are commanded."""
_BY_RULE = re.compile(r"not allowed (while .+ is under way|when (obsState|State) is (?!UNKNOWN))")
"""Text of a refusal by the state of the subarray: an upgrade changes nothing of it."""
_SETTLES_WITHIN = 120.0
_AT_LATEST, _GOES_ON = 15.0, 30.0
"""Time from the end of a replacement to the next one, and to the end of the last one's commands, on a machine that is
too busy to confirm many commands [s]."""
_LEAST_REPORTS = 1_000
"""Reports by the new version that a run has."""
_TAKES_CALLS = 1.0
"""Time after its first answer in which a device server may refuse commands for any reason [s]."""
_READS = "the bus was not read yet"
"""Text of a refusal by a device server that has just started; how long that takes is a matter of the machine."""


def write_release(folder: Path) -> None:
    """Write a release that writes a further field in each message; its `receive-buffer/2` has also a renamed one."""
    for name in _COPIED:
        shutil.copytree(_SOURCE / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in _LINKED:
        (folder / Path(name).name).symlink_to(_SOURCE / name)
    messages, icd = folder / "schemas" / "messages", folder / "schemas" / "icd"
    current = messages / "receive-buffer.schema.json"
    schema: dict[str, Any] = json.loads(current.read_text(encoding="utf-8"))
    current.rename(messages / "receive-buffer-1.schema.json")
    fields = schema["properties"]
    fields["schema"] |= {"const": "receive-buffer/2"}
    fields["packets_dropped"] = fields.pop("dropped") | {"x-aliases": ["dropped"]}
    resets = {"type": "integer", "minimum": 0, "maximum": 1000, "default": 0, "description": "Resets of the buffer."}
    schema["properties"] = fields | {"resets": resets}
    schema |= {"$id": schema["$id"].replace("buffer/1", "buffer/2"), "required": list(schema["properties"])}
    del schema["examples"]
    current.write_text(json.dumps(schema), encoding="utf-8")
    for path in icd.glob("*.toml"):
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace('field = "dropped"', 'field = "packets_dropped"'), encoding="utf-8")
    (icd / "icd.toml").write_text(f'version = "{_NEXT}"\n', encoding="utf-8")
    for path in (folder / "facade" / part / "messages.py" for part in ("kernel", "sdp")):
        text = path.read_text(encoding="utf-8")
        for base in ("Message(Struct, frozen=True, ", "Mutable(Struct, "):
            head = f"class {base}omit_defaults=True, gc=False):"
            if head not in text:
                raise InfraError(f"{path}: expected {head}")
            text = text.replace(head, f"class {base}kw_only=True, omit_defaults=True, gc=False):{_FURTHER}")
        path.write_text(text, encoding="utf-8")


def is_of_next(record: Record) -> bool:
    """Return whether a record is one of the next release."""
    texts = (record.value or b"", *(text for _, text in record.headers))
    return any(b'"further"' in text or b'"receive-buffer/2"' in text for text in texts)


class RollingUpgrade(CommandFaultRun):
    """One run."""

    unit = "commands"
    all_is_well = "every part was replaced; no record was lost or doubled, and no command refused without need"
    full, short = Size(5_000, 2), Size(1_000, 1)
    settings: ClassVar = {"nodes": 4, "subarrays": 4, "rack_size": 2}
    secured = 3
    standstill = 600.0
    is_whole = True
    faults: ClassVar[Sequence[str]] = (*_WORKERS, *_SERVERS, CONTROLLER)

    def prepare(self) -> None:
        super().prepare()
        self._controller_faults = ()
        self._all = self.left
        self._release = self.deployment.folder / "release"
        self._away: list[tuple[str, float, float]] = []
        """Parts that were replaced, with begin and end of their absence [Unix s]."""
        self._killed: list[str] = []
        self._journal = self.deployment.folder / "received.bin"
        self._by_hand = 0
        """Records of either release that were sent to each of those topics."""

    def parts(self) -> Mapping[str, Callable[[], Process]]:
        deployment = self.deployment
        workers = {name: partial(deployment.worker, slot) for name, slot in _WORKERS.items()}
        servers = {name: partial(deployment.server, name) for name in _SERVERS}
        return {**workers, **servers, CONTROLLER: super().parts()[CONTROLLER]}

    def begin(self) -> None:
        write_release(self._release)
        (device,) = self.deployment.devices("SdpAlerts")
        url = f"tango://{self.deployment.tango_host}/{device}"
        self._client = self.deployment.play(follow_alerts, device=url, journal=str(self._journal))
        self._send(_HEAPS, _NODE, "ingest", "--rate", 2000)
        self._send("alert-source", "alert-source", "alerts", "--rate", 20)
        self._send(_BUFFERS, _NODE, "telemetry", "ingest.buffers", "--rate", 200)
        super().begin()
        self._began = self.clock.now()

    def _send(self, name: str, login: str, *words: object) -> None:
        self.deployment.launch(name, "simulate", *words, "--report", self._report(name), login=login)

    def _report(self, name: str) -> Path:
        return self.deployment.folder / f"{name}.json"

    def due(self) -> str:
        """Return the next part; they are spread over the commands, and each one is back before the next goes."""
        done = self._all - self.left
        is_due = self._given >= self.count * (done + 0.5) / (self._all + 1) or not self._caller.is_alive
        return super().due() if is_due or self._since_last() > _AT_LATEST else ""

    def step(self) -> bool:
        if not self.left and self._since_last() > _GOES_ON and self._caller.is_alive:
            self.stop_sending()
        return super().step()

    def _since_last(self) -> float:
        """Return how long ago the last replacement was over [s]."""
        return self.clock.now() - (self._away[-1][2] if self._away else self._began)

    def inject(self, fault: str) -> None:
        self.deployment.run_release(self._release)
        begin = self.clock.now()
        if not self.deployment.processes.stop(fault):
            self._killed.append(fault)
        self.revive()
        if fault in _SERVERS:
            self.demand(lambda: self.deployment.answers(fault), READY_WITHIN, fault)
        self._away.append((fault, begin, self.clock.now()))
        self._send_by_hand()
        if len(self._away) == len(self.faults):  # all readers are new: now writers may be
            self._end(_HEAPS)
            self._send(_NEXT_HEAPS, _NODE, "ingest", "--rate", 2000)
            self._send(_NEXT_BUFFERS, _NODE, "telemetry", "ingest.buffers", "--rate", 200, "--seed", 2)

    def _send_by_hand(self) -> None:
        """Send a record of either release to each topic that no process of the run writes."""
        self._by_hand += 1
        records = []
        for topic, message in _BY_HAND.items():
            for more in ({}, {"further": _NEXT}):
                number = 2 * self._by_hand + bool(more)
                document = documents(int(self.clock.now_us()), number)[message] | more
                if message == "alert":
                    document |= {"source": _SOURCES[bool(more)], "sequence": self._by_hand, "attachments": []}
                one = record(topic, message, document)
                records.append(Record(topic=topic, key=one.key, value=one.value, headers=one.headers))
        KafkaBus(self.deployment.connection, client="rolling").writer().send_all_durably(records, READY_WITHIN)

    def _end(self, sender: str) -> None:
        if not self.deployment.processes.stop(sender):
            self._killed.append(sender)  # its report is not the last one

    def named(self, fault: str) -> str:
        return f"replacements of {fault} (SIGTERM, start)"

    def in_words(self) -> str:
        return f"{super().in_words()}, {len(self._away)} of {self._all} replaced"

    def account(self) -> Balance:
        self.demand(self._next_has_sent, READY_WITHIN, "reports of the new version")
        found = super().account()
        for name in (_NEXT_HEAPS, "alert-source", _BUFFERS, _NEXT_BUFFERS):
            self._end(name)
        self._judge_refusals(found)
        self._judge_totals(found)
        self._judge_alerts(found)
        self._judge_versions(found)
        found.wrong += [f"{name} did not end by itself, and was killed" for name in self._killed]
        version = self.deployment.value("mid-sdp/control/0", "sdpVersion") or ""
        if _NEXT not in version:
            found.wrong.append(f"sdpVersion: expected that of the next release, {_NEXT}, got {version}")
        longest = max(self._away, key=lambda one: one[2] - one[1])
        found.rows.append(("longest absence of a part", f"{longest[2] - longest[1]:.1f} s, {longest[0]}"))
        return found

    def _next_has_sent(self) -> bool:
        path = self._report(_NEXT_BUFFERS)
        return path.exists() and self._buffers(path).sent >= _LEAST_REPORTS

    def _buffers(self, path: Path) -> TelemetryReport:
        return msgspec.json.decode(path.read_bytes(), type=TelemetryReport)

    def _judge_refusals(self, found: Balance) -> None:
        absences = [(begin, end + _TAKES_CALLS) for name, begin, end in self._away if name == _SERVED_BY]
        apart = not_taken(read_calls(self.deployment.folder / "calls.jsonl"), absences)
        reads = [one for one in read_calls(self.deployment.folder / "calls.jsonl") if _READS in one.text]
        found.rows += [
            ("calls not taken while a restarted server read its log", len(reads)),
            ("calls not taken beyond the restarts of their server, but for rules of obsState", len(apart)),
        ]
        found.wrong += [f"{one.device} {one.command}: {one.answer}: {one.text}" for one in apart]

    def _judge_totals(self, found: Balance) -> None:
        heaps = sum(read_report(self._report(name)).sent for name in (_HEAPS, _NEXT_HEAPS))
        buffers = [self._buffers(self._report(name)) for name in (_BUFFERS, _NEXT_BUFFERS)]
        dropped = [
            sum(group.sums.get(field, 0) for group in one.groups.values())
            for one, field in zip(buffers, ("dropped", "packets_dropped"), strict=True)
        ]
        wanted: dict[str, tuple[int, Callable[[], int]]] = {
            "heaps": (heaps, lambda: self._sum("heapsTotal")),
            "heaps that came twice": (0, lambda: self._value("mid-sdp/control/0", "heapsDuplicated")),
            "heaps of the account": (heaps, lambda: self._value("mid-sdp/bus/0", "ingestHeapsConsumed")),
            "buffer reports of both versions": (
                sum(one.sent for one in buffers),
                lambda: self._value("mid-sdp/bus/0", "ingestBuffersConsumed"),
            ),
            "packets dropped, by both versions": (round(sum(dropped)), lambda: self._sum("bufferDroppedTotal")),
        }
        for what, (sent, observe) in wanted.items():
            self.progress.wait_until(partial(_gives, observe, sent), _SETTLES_WITHIN, what)
            shown = observe()
            found.rows.append((what, f"{sent:,} sent, {shown:,} found"))
            if shown != sent:
                found.wrong.append(f"{what}: {sent:,} sent, {shown:,} found")
        found.rows.append(("... of them by the new version", f"{buffers[1].sent:,} reports, {dropped[1]:,} packets"))

    def _judge_alerts(self, found: Balance) -> None:
        """Demand each sent alert on the log, and each alert of the log at the client, once and in order."""
        bus = KafkaBus(self.deployment.connection, client="rolling")
        log: list[Alert | Action] = []

        def has_all() -> bool:
            messages = map(decode_alert_or_action, (one.value for one in bus.read_all(ALERTS)))
            log[:] = (one for one in messages if isinstance(one, Alert | Action))
            return len(read_entries(self._journal)) >= len(log)

        self.progress.wait_until(has_all, _SETTLES_WITHIN, "all alerts are at the client")
        self._client.call_off()
        client = self.deployment.result(self._client, FollowerReport, 60.0)
        sent = {name: one.count for name, one in read_alert_report(self._report("alert-source")).sources.items()}
        sent |= dict.fromkeys(_SOURCES, self._by_hand)
        received = read_entries(self._journal)
        found.rows += [
            ("alerts sent", sum(sent.values())),
            ("alerts on the log, with our own ones", len(log)),
            ("... at the client", len(received)),
            ("longest silence at the client", f"{client.silence:.1f} s"),
        ]
        found.wrong += wrong_alerts(sent, log, received, client.lost)

    def _judge_versions(self, found: Balance) -> None:
        """Count the records of either release on each topic but those of bulk data; a dead letter is a finding."""
        bus, rows = KafkaBus(self.deployment.connection, client="rolling"), []
        for topic, entry in self.deployment.icd.topics.items():
            if entry.qos == "bulk":  # too many to read; their totals are judged
                continue
            records = bus.read_all(topic)
            count = Counter(map(is_of_next, records))
            if topic == ACKS and not any(map(self._is_completed_at_last, records)):
                found.wrong.append("no command was completed after the last replacement")
            if topic in _BY_PROCESSES and not count[True]:
                found.wrong.append(f"{topic}: the processes of the next release have written none of its records")
            rows.append((topic, f"{count[False]:,}", f"{count[True]:,}"))
            is_kept = topic in _BY_HAND and entry.cleanup == "delete"
            if is_kept and count[True] < self._by_hand:
                found.wrong.append(f"{topic}: {self._by_hand} records of the next release sent, {count[True]} found")
        found.tables.append(table(("topic", "records of this release", "of the next one"), rows))
        for letter in bus.read_all(DEAD_LETTERS):
            said = {name: text.decode(errors="replace") for name, text in letter.headers if name.startswith("dl.")}
            found.wrong.append(f"dead letter: {' '.join(said.values())}")

    def _is_completed_at_last(self, record: Record) -> bool:
        ack = decode_ack(record.value)
        last = max(end for _, _, end in self._away)
        return isinstance(ack, AckMessage) and ack.status == COMPLETED and as_seconds(ack.time) > last

    def _value(self, device: str, attribute: str) -> int:
        found = self.deployment.value(device, attribute)
        return -1 if found is None else int(found)

    def _sum(self, attribute: str) -> int:
        return sum(self._value(device, attribute) for device in self.deployment.devices("SdpIngestNode"))


def _gives(observe: Callable[[], int], wanted: int) -> bool:
    return observe() == wanted


def not_taken(calls: Iterable[CallLine], absences: Sequence[tuple[float, float]]) -> list[CallLine]:
    """Return the calls that were not taken though their device server was there, and obsState allowed them.

    Parameters
    ----------
    absences
        When the device server was away: begin and end [Unix s].
    """
    return [
        one
        for one in calls
        if one.answer != "given"
        and not _BY_RULE.search(one.text)
        and not (_READS in one.text and any(0 <= one.called - end <= READY_WITHIN for _, end in absences))
        and not any(begin <= one.called + one.seconds and one.called <= end for begin, end in absences)
    ]


def wrong_alerts(
    sent: Mapping[str, int],
    log: Sequence[Alert | Action],
    received: Sequence[tuple[int, bytes]],
    lost: Sequence[str],
) -> list[str]:
    """Return the differences between the sent alerts, the log, and the events at the client, in words.

    Parameters
    ----------
    sent
        Number of alerts by source.
    received
        Sequence number and digest of each entry, as the client got them.
    lost
        Losses of which the client was told.
    """
    wrong = []
    for source, count in sent.items():
        found = Counter(one.sequence if isinstance(one, Alert) else 0 for one in log if one.source == source)
        if found != Counter(range(1, count + 1)):
            twice, strange = found.total() - len(found), sum(number not in range(1, count + 1) for number in found)
            what = f"{twice:,} of them twice, {strange:,} that the source did not send"
            wrong.append(f"{source}: {count:,} alerts sent, {found.total():,} on the log, {what}")
    numbers = [number for number, _ in received]
    # More may come to the log, and to the client, after the log was read.
    contents = [content for _, content in received[: len(log)]]
    if contents != [digest(one) for one in log] or numbers != sorted(set(numbers)):
        wrong.append(f"{len(received):,} alerts at the client: not the {len(log):,} of the log, once and in order")
    return wrong + [f"the client was told of a loss: {text}" for text in lost]
