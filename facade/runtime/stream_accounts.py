"""The accounts of all streams, gathered from workers and device servers.

Workers write what each transaction did; those entries add up. Device servers write totals into
their snapshots; the newest of each instance counts. Either way the sum is exact over restarts,
because account and offsets are committed together.
"""

from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

import msgspec

from facade.bus.port import Record
from facade.codec.decode import BatchDecoder
from facade.outcome import USED, Outcome
from facade.runtime.accounts import ACCOUNTS, AccountEntry, AccountTotals, StreamAccount
from facade.runtime.flow import Flow
from facade.runtime.snapshots import TOPIC, Snapshot, decode_snapshot

_decode_entry = BatchDecoder(AccountEntry).decode_one
_MICRO = 1_000_000
_RATE_OVER = 2
"""Seconds over which a rate is taken; one transaction is too short."""


class RateMeter:
    """Records per second, from the time stamps of those who counted them."""

    __slots__ = ("_seconds",)

    def __init__(self) -> None:
        self._seconds: deque[tuple[int, int]] = deque(maxlen=_RATE_OVER + 1)

    def add(self, time_us: int, records: int) -> None:
        """Count records at a time [Unix us]."""
        second = time_us // _MICRO
        if self._seconds and self._seconds[-1][0] >= second:
            at, before = self._seconds[-1]
            self._seconds[-1] = (at, before + records)
        else:
            self._seconds.append((second, records))

    def rate(self, now: float) -> float:
        """Return the mean rate over the last full seconds [records/s]."""
        current = int(now)
        return sum(n for second, n in self._seconds if current - _RATE_OVER <= second < current) / _RATE_OVER


class StreamTotals:
    """The account of one stream over all partitions and readers."""

    def __init__(self) -> None:
        self.account = StreamAccount()
        self.rate = RateMeter()
        self.heard = 0.0
        """When its account last came [Unix s]."""
        self.lags: dict[str, int] = {}
        """Records behind, by partition or instance."""

    @property
    def lag(self) -> int:
        """Records that are not yet taken."""
        return sum(self.lags.values())


class _Stored(msgspec.Struct):
    """A stream in a snapshot."""

    heard: float
    totals: AccountTotals


class WorkerAccounts(Flow):
    """A flow: what workers say about the streams that they take."""

    topic = ACCOUNTS
    durable = True

    def __init__(self) -> None:
        self.streams: dict[str, StreamTotals] = {}
        self._workers: dict[tuple[str, str], float] = {}
        """When each worker of a stream last gave a sign of life [Unix s]."""

    def fold(self, record: Record, *, count: bool) -> Outcome:
        """Add an entry; see `facade.runtime.flow.Flow`."""
        entry = _decode_entry(record.value)
        if not isinstance(entry, AccountEntry):
            return entry
        heard = record.timestamp_us / _MICRO
        key = (entry.stream, entry.worker)
        self._workers[key] = max(self._workers.get(key, 0.0), heard)
        stream = self.streams.setdefault(entry.stream, StreamTotals())
        stream.heard = max(stream.heard, heard)
        if entry.partition >= 0:
            stream.lags[str(entry.partition)] = max(entry.high_watermark - entry.offset_to, 0)
        if count:
            stream.account.add(entry)
            stream.rate.add(entry.time, entry.consumed)
        return USED

    def workers_alive(self, stream: str, now: float, within: float) -> int:
        """Count the workers of a stream that gave a sign of life within the last `within` [s]."""
        return sum(name == stream and now - heard <= within for (name, _), heard in self._workers.items())

    def as_dict(self) -> dict[str, Any]:
        """Return the totals by stream."""
        stored = {name: _Stored(stream.heard, stream.account.totals()) for name, stream in self.streams.items()}
        builtins: dict[str, Any] = msgspec.to_builtins(stored)
        return builtins

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take the totals by stream."""
        for name, stored in msgspec.convert(state, dict[str, _Stored]).items():
            stream = self.streams.setdefault(name, StreamTotals())
            stream.account.restore(stored.totals)
            stream.heard = stored.heard


class ReaderAccounts(Flow):
    """A flow: what device servers say, in their snapshots, about the streams that they read."""

    topic = TOPIC

    def __init__(self) -> None:
        self._newest: dict[tuple[str, str], tuple[int, AccountTotals]] = {}
        self._rates: dict[str, RateMeter] = {}
        self._streams: dict[str, StreamTotals] | None = None
        """The sum as it was last made, while it holds."""

    def fold(self, record: Record, *, count: bool) -> Outcome:
        """Keep the newest account of an instance and topic; see `facade.runtime.flow.Flow`."""
        snapshot = decode_snapshot(record.value)
        if not isinstance(snapshot, Snapshot):
            return snapshot
        key = (snapshot.instance, snapshot.topic)
        _, before = self._newest.get(key, (0, None))
        if before is not None:
            meter = self._rates.setdefault(snapshot.topic, RateMeter())
            meter.add(snapshot.time, max(snapshot.account.consumed - before.consumed, 0))
        self._newest[key] = snapshot.time, snapshot.account
        self._streams = None
        return USED

    @property
    def streams(self) -> dict[str, StreamTotals]:
        """Return the sum over the instances, by stream."""
        if self._streams is None:
            self._streams = self._sum()
        return self._streams

    def _sum(self) -> dict[str, StreamTotals]:
        streams: dict[str, StreamTotals] = {}
        for (instance, topic), (time, totals) in self._newest.items():
            stream = streams.setdefault(topic, StreamTotals())
            one = StreamAccount()
            one.restore(totals)
            stream.account.add(one)
            stream.account.in_flight += one.in_flight
            stream.heard = max(stream.heard, time / _MICRO)
            stream.lags[instance] = one.behind
            stream.rate = self._rates.get(topic, stream.rate)
        return streams


def reasons_by_stream(streams: Mapping[str, StreamTotals]) -> list[str]:
    """Return 'stream reason count' lines, the most frequent first."""
    counts: Counter[tuple[str, str]] = Counter()
    for name, stream in streams.items():
        for reason, count in stream.account.reasons.items():
            counts[name, reason] = count
    return [f"{name} {reason} {count}" for (name, reason), count in counts.most_common()]
