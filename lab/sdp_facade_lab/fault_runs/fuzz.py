"""A fuzz: records of all kinds are sent on all topics in all codecs. No process of the system may end.

Sent: good and bad records. Expected: each in exactly one count, and each good one used. Observed: the accounts on
SdpBus, the dead letters, all attributes, and the memory of all processes.
"""

from collections import Counter
from collections.abc import Iterator
from typing import ClassVar, Final

import tango

from facade.kernel.bus.dead_letters import TOPIC as DEAD_LETTERS
from facade.kernel.bus.kafka.bus import KafkaBus
from sdp_facade_lab.balance import Balance
from sdp_facade_lab.bench.raw import RawSender
from sdp_facade_lab.fault_runs.frame import FURTHER_WORKERS, FaultRun, Size
from sdp_facade_lab.fault_runs.fuzz_records import GOOD_GROUP, MARK, SHARES, numbered
from sdp_facade_lab.gauges import memory_of_all

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
SENT_BY_US: Final = ("ingest.heaps", "ingest.buffers", "flagging", "storage", "alert-packets", "calibration", "quality")
"""Topics that only the run writes, and that have an account as attributes."""
BUS: Final = "mid-sdp/bus/0"
_ROUNDS: Final = 2
"""Phases in each codec; memory is compared with that after the first round."""
_SETTLED_WITHIN, _LETTERS_WITHIN = 600.0, 120.0
_EXPIRY: Final = "10"
"""Time after which a table is given up of which a segment never comes, and its records are counted [s]: a spoilt number
of segments makes such tables, and the phases wait for them."""
_GROWTH, _SLACK = 1.25, 30.0
"""Memory that a process may have at the end, in terms of that after its warm-up, and on top of it [MB]."""


class Fuzz(FaultRun):
    """One fuzz; no process is killed, and none may end by itself."""

    unit, all_is_well = "good and bad records", "each record is in one count, and all attributes can be read"
    full, short = Size(1_000_000, 0), Size(20_000, 0)
    settings: ClassVar = {"nodes": 4, "subarrays": 2}
    is_whole = True

    def prepare(self) -> None:
        self._partitions = {name: topic.partitions for name, topic in self.deployment.icd.topics.items()}
        self._sequences: dict[str, int] = {}
        self.delivered: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.good: Counter[str] = Counter()
        self.memory: list[dict[str, float]] = []
        """Of each process after each phase [MB]."""
        self.attributes = 0
        self.wrong: list[str] = []
        self._settles = True

    def run(self) -> Balance:
        for name, words in FURTHER_WORKERS.items():
            self.deployment.launch(name, *words, SDP_TABLE_EXPIRY=_EXPIRY)
        phases = [codec for _ in range(_ROUNDS) for codec in CODECS]
        share = -(-self.count // len(phases))
        for number, codec in enumerate(phases):
            first = number * share
            last = min(first + share, self.count)
            self._send(codec, first, last)
            self._settle()
            self.attributes = self._read_all(f"records {first} to {last - 1} in {codec}")
            self.memory.append(memory_of_all(self.deployment))
            self.progress.step(f"  {codec}: records to {last - 1:,}; {self.attributes} attributes can be read")
        self._judge()
        return Balance([*self._rows()], self.wrong)

    def _rows(self) -> Iterator[tuple[str, int | str]]:
        for topic in dict.fromkeys(topic for topic, _ in SHARES):
            counts = f"{self.delivered[topic]:,} delivered, of which {self.good[topic]:,} good"
            yield topic, f"{counts}; {self.refused[topic]:,} refused by the broker"
        for name, before in self.memory[len(CODECS) - 1].items():
            yield (
                f"memory of {name}",
                f"{before:.0f} MB after the warm-up, {self.memory[-1].get(name, 0.0):.0f} at the end",
            )
        yield "attributes that can be read", self.attributes

    def _send(self, codec: str, first: int, last: int) -> None:
        sender = RawSender(self.deployment.connection, codec)
        for number in range(first, last):
            now_us = int(self.clock.now_us())
            made = numbered(self.seed, number, now_us, self._partitions, self._sequences)
            self.good[made.record.topic] += made.is_good
            sender.send(made.record)
            if number % 1000 == 0:
                self.deployment.processes.check()
        if left := sender.flush(_SETTLED_WITHIN):
            self.wrong.append(f"{left} records in {codec} were neither taken nor refused by the broker")
        self.delivered += sender.delivered
        self.refused += sender.refused

    def _settle(self) -> None:
        """Wait until the accounts of our topics have as many records as the brokers.

        A lost record stays lost, so later phases do not wait for it.
        """
        if self._settles:
            found = self.progress.wait_until(
                lambda: not list(self._uncounted()), _SETTLED_WITHIN, "each record is counted"
            )
            self._settles = found is not None
        self.deployment.processes.check()

    def _figure(self, topic: str, figure: str) -> int:
        head, *rest = topic.replace("-", ".").split(".")
        name = head + "".join(map(str.capitalize, rest)) + figure
        return int(self.deployment.values(BUS, name).get(name, -1) or 0)

    def _uncounted(self) -> Iterator[str]:
        for topic in SENT_BY_US:
            if (found := self._figure(topic, "Consumed")) != self.delivered[topic]:
                yield f"{topic}: {self.delivered[topic]:,} records on the topic, {found:,} in the account"

    def _read_all(self, after: str) -> int:
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
            self.wrong.append(
                f"{self.good['ingest.heaps']:,} good heaps of node {GOOD_GROUP}, {self._good_heaps():,} shown"
            )
        self._judge_letters()
        for name, before in self.memory[len(CODECS) - 1].items():
            if (after := self.memory[-1].get(name, 0.0)) > before * _GROWTH + _SLACK:
                self.wrong.append(f"{name} has {after:.0f} MB, and had {before:.0f} MB after its warm-up")

    def _good_heaps_are_shown(self) -> bool:
        return self._good_heaps() == self.good["ingest.heaps"]

    def _good_heaps(self) -> int:
        return int(self.deployment.proxy(f"mid-sdp/ingest/{GOOD_GROUP:04d}").heapsTotal or 0)

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
