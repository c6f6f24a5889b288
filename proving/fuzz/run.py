"""The fuzz of a whole system: broker, database, all device servers and workers, and records of all kinds."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import tango
import typer
from rich.markup import escape
from rich.table import Table

from facade.bus.dead_letters import TOPIC as DEAD_LETTERS
from facade.bus.kafka.bus import KafkaBus
from facade.bus.kafka.raw import RawSender
from facade.clock import SystemClock
from facade.console import Console
from facade.runtime.stopping import terminable
from proving.deployment import Deployment
from proving.fuzz.records import GOOD_GROUP, MARK, SHARES, numbered
from proving.gauges import memory_of_all
from proving.progress import Progress
from proving.testbed import testbed

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
WORKERS: Final = {"alerts-intake": ("alerts", "intake"), "tables-assemble": ("tables", "assemble")}
SENT_BY_US: Final = ("ingest.heaps", "ingest.buffers", "flagging", "storage", "alert-packets", "calibration", "quality")
"""Topics on which nobody else writes, and whose account is an attribute."""
BUS: Final = "mid-sdp/bus/0"
_ROUNDS: Final = 2
"""Phases in each codec; memory is compared with that after the first round."""
_SETTLED_WITHIN, _LETTERS_WITHIN = 600.0, 120.0
_EXPIRY: Final = "10"
"""Time after which a table is given up of which a segment never comes, and its records are counted [s]: a spoilt number
of segments makes such tables, and the phases wait for them."""
_GROWTH, _SLACK = 1.25, 30.0
"""Memory that a process may have at the end, in terms of that after its warm-up, and on top of it [MB]."""
_MOST_SHOWN = 20


class Fuzz:
    """One fuzz.

    Parameters
    ----------
    first, count
        Numbers of the records; each follows from the seed and its number, so that a part can be sent again.
    """

    def __init__(self, deployment: Deployment, *, seed: int, first: int, count: int) -> None:
        self.deployment, self.progress, self.clock = deployment, deployment.progress, deployment.clock
        self._seed, self._first, self._count = seed, first, count
        self._partitions = {name: topic.partitions for name, topic in deployment.icd.topics.items()}
        self._sequences: dict[str, int] = {}
        self.delivered: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.good: Counter[str] = Counter()
        self.memory: list[dict[str, float]] = []
        """Of each process after each phase [MB]."""
        self.attributes = 0
        self.wrong: list[str] = []
        self._settles = True

    def run(self) -> None:
        """Send all, and look after each phase."""
        phases = [codec for _ in range(_ROUNDS) for codec in CODECS]
        share = -(-self._count // len(phases))
        for number, codec in enumerate(phases):
            first = self._first + number * share
            last = min(first + share, self._first + self._count)
            self._send(codec, first, last)
            self._settle()
            self.attributes = self._read_all(f"records {first} to {last - 1} in {codec}")
            self.memory.append(memory_of_all(self.deployment))
            self.progress.step(f"  {codec}: records to {last - 1:,}; {self.attributes} attributes can be read")
        self._judge()

    def _send(self, codec: str, first: int, last: int) -> None:
        sender = RawSender(self.deployment.connection, codec)
        for number in range(first, last):
            now_us = round(self.clock.now() * 1e6)
            made = numbered(self._seed, number, now_us, self._partitions, self._sequences)
            self.good[made.record.topic] += made.is_good
            sender.send(made.record)
            if number % 1000 == 0:
                self.deployment.processes.check()
        if left := sender.flush(_SETTLED_WITHIN):
            self.wrong.append(f"{left} records in {codec} were neither taken nor refused by the broker")
        self.delivered += sender.delivered
        self.refused += sender.refused

    def _settle(self) -> None:
        """Wait until the accounts of our topics have as many records as the brokers; what is lost once stays so."""
        if self._settles:
            found = self.progress.wait_until(
                lambda: not list(self._uncounted()), _SETTLED_WITHIN, "each record is counted"
            )
            self._settles = found is not None
        self.deployment.processes.check()

    def _figure(self, topic: str, figure: str) -> int:
        head, *rest = topic.replace("-", ".").split(".")
        name = head + "".join(map(str.capitalize, rest)) + figure
        try:
            return int(self.deployment.proxy(BUS).read_attribute(name).value or 0)
        except (tango.DevFailed, TypeError):
            return -1

    def _uncounted(self) -> Iterator[str]:
        for topic in SENT_BY_US:
            if (found := self._figure(topic, "Consumed")) != self.delivered[topic]:
                yield f"{topic}: {self.delivered[topic]:,} records on the topic, {found:,} in the account"

    def _read_all(self, after: str) -> int:
        """Read each attribute of each device; return their number."""
        read = 0
        for device in self.deployment.devices():
            proxy = self.deployment.proxy(device)
            try:
                names = [entry.name for entry in proxy.attribute_list_query()]
                for name, answer in zip(names, proxy.read_attributes(names), strict=True):
                    read += 1
                    if answer.has_failed:
                        self.wrong.append(f"{device}/{name} cannot be read after {after}")
            except tango.DevFailed as error:
                self.wrong.append(f"{device} cannot be read after {after}: {error.args[0].desc}")
        return read

    def _judge(self) -> None:
        self.wrong += self._uncounted()
        for topic in SENT_BY_US:
            parts = {figure: self._figure(topic, figure) for figure in ("Used", "Late", "Suppressed", "DeadLettered")}
            if sum(part for part in parts.values() if part > 0) != self.delivered[topic]:
                self.wrong.append(f"{topic}: {self.delivered[topic]:,} records are {parts}")
            # A good one that waited too long for the broker is late, by its clock.
            if (found := parts["Used"] + max(parts["Late"], 0)) < self.good[topic]:
                self.wrong.append(f"{topic}: {self.good[topic]:,} good records, {found:,} used or late")
        self.progress.wait_until(self._good_heaps_are_shown, _LETTERS_WITHIN, "the good heaps are shown")
        if not self._good_heaps_are_shown():
            used, late = self._good_heaps()
            self.wrong.append(
                f"{self.good['ingest.heaps']:,} good heaps of node {GOOD_GROUP}, {used:,} shown and {late:,} late"
            )
        self._judge_letters()
        for name, before in self.memory[len(CODECS) - 1].items():
            if (after := self.memory[-1].get(name, 0.0)) > before * _GROWTH + _SLACK:
                self.wrong.append(f"{name} has {after:.0f} MB, and had {before:.0f} MB after its warm-up")

    def _good_heaps_are_shown(self) -> bool:
        return sum(self._good_heaps()) == self.good["ingest.heaps"]

    def _good_heaps(self) -> tuple[int, int]:
        """Return how many heaps of the node of good ones are used, and how many came late."""
        node = self.deployment.proxy(f"mid-sdp/ingest/{GOOD_GROUP:04d}")
        used, late = (int(one.value or 0) for one in node.read_attributes(["heapsTotal", "heapsLate"]))
        return used, late

    def _judge_letters(self) -> None:
        bus, letters = KafkaBus(self.deployment.connection, client="fuzz"), Counter[str]()
        reader = bus.open_reader({DEAD_LETTERS: None}, {})
        until = self.clock.monotonic() + _LETTERS_WITHIN
        while not reader.caught_up(DEAD_LETTERS) and self.clock.monotonic() < until:
            for letter in reader.take(1000, 0.5):
                headers = dict(letter.headers)
                topic, reason = (headers[name].decode() for name in ("dl.topic", "dl.reason"))
                letters[topic] += 1
                if MARK in headers or reason == "internal":
                    what = "a good record" if MARK in headers else "a mistake of ours"
                    at = f"{headers['dl.partition'].decode()}/{headers['dl.offset'].decode()}"
                    self.wrong.append(f"{topic} {at}: {what}: {reason}: {headers['dl.detail'].decode()}")
        reader.close()
        for topic in SENT_BY_US:
            counted = max(self._figure(topic, "DeadLettered"), 0)
            # Of a table that is given up, one letter stands for all segments.
            if counted != letters[topic] and not (topic == "calibration" and 0 < letters[topic] < counted):
                self.wrong.append(f"{topic}: {counted:,} dead letters in the account, {letters[topic]:,} on the topic")


def fuzz(
    records: Annotated[int, typer.Option(min=100, help="How many to send.")] = 1_000_000,
    seed: Annotated[int, typer.Option(help="Seed of the records.")] = 1,
    first: Annotated[int, typer.Option(min=0, help="Number of the first record, to send a part again.")] = 0,
    folder: Annotated[
        Path, typer.Option(help="Folder for the broker, the Tango database and the logs of the run.")
    ] = Path(".run"),
) -> None:
    """Send good and bad records on every topic that the facade reads, in every codec, and account for each.

    The exit code is 1 when a process ended, an attribute could not be read, memory grew, a record was not in exactly
    one count, or a good one was not used. Each record follows from the seed and its number: --first and --records
    send a part again.

    Example: sdp-facade fuzz --records 20000 --seed 7
    """
    progress = Progress(Console(highlight=False, soft_wrap=True), SystemClock())
    progress.step(f"seed {seed}, records {first:,} to {first + records - 1:,}")
    with terminable(), testbed(folder, progress) as bed, bed.system("fuzz", nodes=4, subarrays=2) as deployment:
        for name, words in WORKERS.items():
            deployment.launch(name, *words, SDP_TABLE_EXPIRY=_EXPIRY)
        run = Fuzz(deployment, seed=seed, first=first, count=records)
        run.run()
    _print(progress.console, run)
    if run.wrong:
        raise typer.Exit(1)


def _print(console: Console, run: Fuzz) -> None:
    table = Table("topic", "delivered", "of which good", "refused by the broker", title="The fuzz")
    for topic in dict.fromkeys(topic for topic, _ in SHARES):
        table.add_row(topic, *(f"{counts[topic]:,}" for counts in (run.delivered, run.good, run.refused)))
    console.print(table)
    memory = Table("process", "after the warm-up [MB]", "at the end [MB]")
    for name, before in run.memory[len(CODECS) - 1].items():
        memory.add_row(name, f"{before:.0f}", f"{run.memory[-1].get(name, 0.0):.0f}")
    console.print(memory)
    for text in run.wrong[:_MOST_SHOWN]:
        console.print(f"[red]wrong[/red]  {escape(text)}")
    console.print(
        f"{len(run.wrong)} findings"
        if run.wrong
        else f"each record is in one count; {run.attributes} attributes can be read"
    )
