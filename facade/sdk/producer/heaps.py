"""Sends the heap notifications of an ingest node as columnar batches."""

import logging
import threading
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

import msgspec
import numpy as np
import numpy.typing as npt

from facade.flows.telemetry.plan import plan
from facade.flows.telemetry.summed import sums_of
from facade.kernel.bus.kafka.bus import KafkaBatchLog
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.port import Headers, Record
from facade.kernel.clock import MINUTE, Clock, SystemClock, Time, as_seconds, wait_until
from facade.kernel.codec.decode import BatchDecoder
from facade.kernel.config import Settings, load_client_settings
from facade.kernel.errors import BusError, ConfigError
from facade.kernel.icd.load import load
from facade.kernel.runtime.steps import StepThread
from facade.sdk.producer.folder import DiskFolder, Folder
from facade.sdk.producer.spool import MOST_BYTES, Spool, Stored
from facade.sdp.batches import ARROW, CONTENT_TYPE, FRAME, HEADER
from facade.sdp.columns import number_fields
from facade.sdp.heap_batches import TYPES, heap_batch
from facade.sdp.messages import Batch

# --- Forwarding ---

_UNDER_WAY: Final = 64
"""Batches posted before the first of them is confirmed."""
_AGAIN: Final = 0.5
"""Pause after the bus has refused a batch [s]."""
_SETTLES: Final = 1.0
"""Time within which a request of a killed process reaches an answering broker [s]."""
_SKEW: Final = MINUTE
"""Largest difference between the clocks of broker and producer."""


class Fate(Protocol):
    """The state of a posted record."""

    @property
    def confirmed(self) -> bool:
        """Return whether all in-sync replicas are known to have the record."""

    @property
    def settled(self) -> bool:
        """Return whether the result is final; without a confirmation, the record may be stored or not."""


class BatchLog(Protocol):
    """The topic of the batches."""

    def post(self, record: Record) -> Fate:
        """Queue a record after earlier posts, without waiting.

        Raises
        ------
        BusError
            The queue does not accept it.
        """

    def since(self, topic: str, time: Time) -> Iterable[Record]:
        """Return the records that are on a topic now and were written at or after a time.

        Raises
        ------
        BusError
            The broker does not answer.
        """

    def close(self, timeout: float) -> None:
        """Wait for the queue, at most `timeout` [s]."""


def pack(header: bytes, value: bytes, *frame: bytes) -> bytes:
    """Return a batch, with its frame if it has one, in the form of the spool."""
    return msgspec.msgpack.encode((header, value, *frame))


class Forwarder:
    """Sends the batches of one spool; for one thread.

    Parameters
    ----------
    producer
        Name in the headers of the batches.
    """

    def __init__(self, spool: Spool, log: BatchLog, topic: str, key: bytes, producer: str, *, clock: Clock) -> None:
        self._spool, self._log, self._clock = spool, log, clock
        self._topic, self._key, self._producer = topic, key, producer
        self._under_way: dict[int, Fate] = {}
        self._sent: set[int] = set()
        """Numbers of confirmed batches that follow an unconfirmed one."""
        self._in_doubt = any(stored.sequence <= spool.posted for stored in spool.head(1))
        self._looked_at: float | None = None
        self._not_before = 0.0
        self._headers = BatchDecoder(Batch)
        self.lost = 0
        """Rows of batches that could not be read back from the disk."""
        self.error = ""
        """Reason why nothing is sent; empty text: batches are sent."""

    def step(self) -> None:
        """Process the results of the bus, and post waiting batches."""
        if self._clock.monotonic() < self._not_before:
            return
        self._hear()
        try:
            if self._in_doubt and not self._under_way:
                self._look()
            if not self._in_doubt:
                self._post()
                self.error = ""
        except BusError as error:
            self.pause(str(error))

    def _hear(self) -> None:
        for sequence, fate in [*self._under_way.items()]:
            if fate.confirmed:
                self._sent.add(sequence)
            elif fate.settled:
                self._in_doubt = True
            else:
                continue
            del self._under_way[sequence]
        self._note_sent()

    def _look(self) -> None:
        """Look for possibly sent batches on the log; twice, as an earlier request may still be under way."""
        first = self._spool.head(max(0, self._spool.posted - self._spool.done))
        doubtful = {stored.sequence: stored for stored in first if stored.sequence <= self._spool.posted}
        now = self._clock.monotonic()
        if doubtful:
            oldest = min(stored.time_us for stored in doubtful.values())
            for record in self._log.since(self._topic, oldest - _SKEW):
                if record.key == self._key and (number := self._number(record.headers)) in doubtful:
                    self._sent.add(number)
        if self._looked_at is None and doubtful:
            self._looked_at, self._not_before = now, now + _SETTLES
            return
        self._looked_at, self._in_doubt = None, False
        self._note_sent()

    def _number(self, headers: Headers) -> int:
        """Return the sequence of a batch of this producer; -1: it is another producer's."""
        if not any(name == HEADER for name, _ in headers):
            return -1
        header = self._headers.decode_header(headers, HEADER)
        return header.sequence if isinstance(header, Batch) and header.producer == self._producer else -1

    def _post(self) -> None:
        for stored in self._spool.head(_UNDER_WAY + len(self._sent)):
            if len(self._under_way) >= _UNDER_WAY:
                return
            if stored.sequence not in self._under_way and stored.sequence not in self._sent:
                self._post_one(stored)

    def _post_one(self, stored: Stored) -> None:
        try:
            content = self._spool.read(stored)
        except OSError as error:
            raise BusError(f"nothing is sent, as batch {stored.sequence} cannot be read now: {error}") from error
        if content is None:
            self.lost += stored.rows
            self._sent.add(stored.sequence)
            return
        header, value, *frame = msgspec.msgpack.decode(content, type=list[bytes])
        headers = ((CONTENT_TYPE, ARROW.encode()), (HEADER, header), *((FRAME, one) for one in frame))
        # The mark comes first: after a crash the successor must know the batches that may be on the bus.
        if not self._spool.mark(done=self._spool.done, posted=max(self._spool.posted, stored.sequence)):
            raise BusError(f"nothing is sent, as the spool's mark cannot be written: {self._spool.trouble}")
        record = Record(topic=self._topic, key=self._key, value=value, headers=headers)
        self._under_way[stored.sequence] = self._log.post(record)

    def _note_sent(self) -> None:
        done = self._spool.done
        for stored in self._spool.head(len(self._sent)):
            if stored.sequence not in self._sent:
                break
            done = stored.sequence
        self._spool.mark(done=done, posted=max(self._spool.posted, done))
        self._sent = {number for number in self._sent if number > self._spool.done}

    def pause(self, why: str) -> None:
        """Pause sending for a while, with a reason."""
        self.error, self._not_before = why, self._clock.monotonic() + _AGAIN


# --- The producer ---
#
# A window is closed a little after its end (`disorder` in ``topics.toml``), and is shown without later notifications.
# So a batch ends with its window: it holds notifications of one window, and leaves at the end of the window even if its
# first notification is younger than `period`. Notifications of windows that are closed already share a batch, and so do
# those that are too far ahead: no window waits for them, and a wrong clock must not make a batch of each notification.


_log = logging.getLogger(__name__)

_TOPIC: Final = "ingest.heaps"
_STEP: Final = 0.02
"""Time between two steps of the thread [s]."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of a producer."""

    waiting: int
    """Batches that the bus has not confirmed."""
    bytes: int
    """Size of the waiting batches on disk [bytes]."""
    sent: int
    """Sequence number up to which all batches are on the bus; -1: none yet."""
    dropped: int
    """Notifications that found no room since the start, or that could not be read back from the disk."""
    missing: int
    """Batches that the process before this one kept in memory because the disk was full, or that the disk has damaged
    since. They are lost unless they had just been sent."""
    disk: str
    """The reason why the disk takes no batches; empty if it does."""
    bus: str
    """The reason why no batches are sent; empty if they are."""


Columns = Mapping[str, npt.NDArray[Any]]
"""Notifications, by field."""


@dataclass(slots=True)
class _Begun:
    """Notifications that are in no batch yet."""

    due: float
    """When they become a batch, by the monotonic clock [s]."""
    columns: dict[str, "array[Any]"]

    def __len__(self) -> int:
        return len(self.columns["seq"])


class HeapProducer:
    """Sends the notifications of one node, and keeps them on disk while the brokers are away.

    A batch ends with its scan and with its window, whose length the installed interface gives. Several threads may use
    the producer. As a context manager it is closed at the end of the block.

    Parameters
    ----------
    node
        Number of the node.
    spool
        Folder for this node only. It must outlive the process. A `Folder` replaces the disk in tests.
    settings
        The deployment. By default the environment and the settings file give it.
    rows
        Number of notifications with which a batch is sent, at most 65,536.
    period
        Age of the first notification with which a batch is sent [s]; earlier at the end of its window.
    most_bytes
        Largest size of the spool [bytes]. Further notifications are dropped and counted; the next batch has the count.
    summed
        Whether batches get a header with their partial sums, which workers then use instead of the columns. The
        interface that is installed says which sums, so it must be that of the workers.
    log, clock
        Replacements of the bus and the clock, for tests.

    Raises
    ------
    ConfigError
        The folder cannot be used, or a setting is wrong.
    ValueError
        `rows` is out of its range.

    Examples
    --------
    >>> with HeapProducer(node=42, spool="spool-of-node-42") as producer:
    ...     producer.start()
    ...     producer.add(scan_id=7, channel_count=64, seq=0, time=1795276800000000, channel_start=0, received=64,
    ...                  lost=0, late=0, flagged_fraction=0.25, latency=0.5)
    >>> producer.standing.waiting
    0
    """

    def __init__(
        self,
        node: int,
        spool: Path | str | Folder,
        *,
        settings: Settings | None = None,
        rows: int = 4096,
        period: float = 0.1,
        most_bytes: int = MOST_BYTES,
        summed: bool = False,
        log: BatchLog | None = None,
        clock: Clock | None = None,
    ) -> None:
        if not 1 <= rows <= 65_536:
            raise ValueError(f"rows: expected 1 to 65,536, got {rows}")
        self._node, self._rows, self._period, self._clock = node, rows, period, clock or SystemClock()
        self._spool = Spool(_opened(spool), most_bytes=most_bytes)
        if log is None:
            try:
                log = KafkaBatchLog(Connection(settings or load_client_settings()), client=f"node-{node}")
            except BaseException:
                self._spool.close()  # or a second attempt in this process would find the spool in use
                raise
        self._bus, self._producer = log, f"node-{node}-{self._spool.id}"
        self._forwarder = Forwarder(self._spool, log, _TOPIC, b"%d" % node, self._producer, clock=self._clock)
        self._fields = number_fields(load().messages["heap"])
        self._rule = plan(load(), _TOPIC).rule
        self._sums = sums_of(load(), _TOPIC) if summed else None
        self._begun: dict[Time, _Begun] = {}
        """By begin of the window."""
        self._constants: dict[str, int] = {}
        self._dropped = self._told = 0
        self._said: tuple[str, str, bool] = ("", "", False)
        self._lock = threading.RLock()
        self._thread = StepThread(self.step, self._producer, each=_STEP, on_mistake=self._pause)
        self._closed = False

    def add(self, *, scan_id: int, channel_count: int, **fields: float) -> None:
        """Add one notification. It does not wait for the bus.

        Parameters
        ----------
        scan_id
            Number of the scan.
        channel_count
            Number of channels of the heap.
        **fields
            The other fields of the message `heap`, without `schema` and `node`.

        Raises
        ------
        ValueError
            A field is missing, unknown or not a number, the number of the node, scan or channels is not within its
            limits, or the producer is closed. Nothing was added.
        """
        self.add_columns(scan_id=scan_id, channel_count=channel_count, **{name: [v] for name, v in fields.items()})

    def add_columns(self, *, scan_id: int, channel_count: int, **columns: npt.ArrayLike) -> None:
        """Add many notifications of one scan. It does not wait for the bus.

        Parameters
        ----------
        scan_id
            Number of the scan.
        channel_count
            Number of channels of each heap.
        **columns
            The other fields of the message `heap`, each of shape (notifications,).

        Raises
        ------
        ValueError
            A column is missing or unknown, has other values than numbers, or another shape; the number of the node,
            scan or channels is not within its limits; or the producer is closed. Nothing was added.
        """
        found = _checked(columns)
        constants = {"node": self._node, "scan_id": scan_id, "channel_count": channel_count}
        for field in self._fields:
            if field.name in constants and not field.low <= constants[field.name] <= field.high:
                limits = f"{field.low} to {field.high}"
                raise ValueError(f"{field.name}: expected {limits}, got {constants[field.name]!r:.100}")
        constants = {name: int(value) for name, value in constants.items()}
        with self._lock:
            if self._closed:
                raise ValueError("expected an open producer, got one that is closed")
            if constants != self._constants:
                self._cut_all()
                self._constants = constants
            now = self._clock.now_us()
            for window, part in self._by_window(found, now):
                self._add(window, part, now)
            self._cut_when_due()

    def flush(self) -> None:
        """Make batches of the notifications that were added, and put them into the spool."""
        with self._lock:
            self._cut_all()

    def step(self) -> None:
        """Make and send the batches that are due; wait for the bus only after a crash or a refusal, to read the log."""
        with self._lock:
            self._cut_when_due()
        self._spool.save()
        self._forwarder.step()
        self._tell()

    def start(self) -> None:
        """Call `step` in a thread from now on."""
        self._thread.start()

    def close(self, timeout: float = 5.0) -> None:
        """Send the batches that wait. Batches that are not sent in time stay in the spool for the next start.

        A second call does nothing.

        Parameters
        ----------
        timeout
            Longest wait [s].
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._thread.end()
        self.flush()

        def is_empty() -> bool:
            self.step()
            return not self._spool.waiting

        try:
            wait_until(self._clock, is_empty, timeout, _STEP)
        finally:
            self._bus.close(0.0)
            self._spool.close()

    @property
    def standing(self) -> Standing:
        """The state of the producer."""
        spool = self._spool
        dropped = self._dropped + self._forwarder.lost
        return Standing(
            len(spool.waiting), spool.size, spool.done, dropped, spool.missing, spool.trouble, self._forwarder.error
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _pause(self, error: Exception) -> None:
        """Show why nothing is sent: a producer must not seem to send."""
        self._forwarder.pause(f"internal error: {type(error).__name__}: {error}")

    def _by_window(self, columns: Columns, now: Time) -> Iterator[tuple[Time, Columns]]:
        """Return the notifications of each window by its begin: all closed windows are one, and all too far ahead."""
        times, length = columns["time"], self._rule.length_us
        if not len(times):
            return
        closed, ahead = self._newest_closed(now), now + self._rule.ahead_us
        ahead += length - ahead % length
        ends = (Time(int(times.min())), Time(int(times.max())))
        first, last = (min(max(at - at % length, closed), ahead) for at in ends)
        if first == last:  # as nearly always
            yield first, columns
            return
        windows = np.clip(times - times % length, closed, ahead)
        for window in np.unique(windows).tolist():
            mine = windows == window
            yield Time(window), {name: column[mine] for name, column in columns.items()}

    def _newest_closed(self, now: Time) -> Time:
        """Return the begin of the newest window that is closed."""
        return self._rule.newest_close(now) - self._rule.disorder_us - self._rule.length_us

    def _add(self, window: Time, columns: Columns, now: Time) -> None:
        """Add notifications of one window."""
        begin, count = 0, len(columns["seq"])
        while begin < count:
            if (batch := self._begun.get(window)) is None:
                empty = {name: array("d" if "f" in kind else "q") for name, kind in TYPES.items()}
                batch = self._begun[window] = _Begun(self._clock.monotonic() + self._wait(window, now), empty)
            end = min(count, begin + self._rows - len(batch))
            for name, column in batch.columns.items():
                column.frombytes(columns[name][begin:end].tobytes())
            begin = end
            if len(batch) >= self._rows:
                self._cut(window)

    def _wait(self, window: Time, now: Time) -> float:
        """Return the time in which the first notification of a window becomes a batch with others [s]."""
        left = as_seconds(window + self._rule.length_us - now)
        if window <= self._newest_closed(now):
            return self._period
        return min(self._period, left if left > 0 else _STEP)  # a straggler is in a hurry, but may not be the only one

    def _cut_when_due(self) -> None:
        now = self._clock.monotonic()
        for window in [window for window, batch in self._begun.items() if now >= batch.due]:
            self._cut(window)

    def _cut_all(self) -> None:
        for window in [*self._begun]:
            self._cut(window)

    def _cut(self, window: Time) -> None:
        """Make a batch of the added notifications of a window."""
        columns = {name: np.array(column) for name, column in self._begun.pop(window).columns.items()}
        rows, dropped = len(columns["seq"]), self.standing.dropped
        more = {"producer": self._producer, "sequence": self._spool.next, "dropped": dropped - self._told}
        headers, value = heap_batch(columns, self._constants, **more)
        known = dict(headers if self._sums is None else self._sums.with_frame(headers, value))
        content = pack(known[HEADER], value, *(known[name] for name in (FRAME,) if name in known))
        if self._spool.add(content, rows, self._clock.now_us()):
            self._told = dropped
        else:
            self._dropped += rows

    def _tell(self) -> None:
        now = self.standing
        said = (now.disk, now.bus, now.dropped > 0 or now.missing > 0)
        if said != self._said:
            self._said = said
            _log.warning("%s: %s", self._producer, now)


def _opened(spool: Path | str | Folder) -> Folder:
    if not isinstance(spool, Path | str):
        return spool
    try:
        return DiskFolder(Path(spool))
    except OSError as error:
        raise ConfigError(f"spool {spool}: expected a folder that can be written: {error}") from error


def _checked(columns: Mapping[str, npt.ArrayLike]) -> dict[str, npt.NDArray[Any]]:
    """Return columns of 64 bits."""
    if columns.keys() != TYPES.keys():
        raise ValueError(f"expected the columns {', '.join(sorted(TYPES))}, got {', '.join(sorted(columns))}")
    found = {}
    for name, kind in TYPES.items():
        given = np.asarray(columns[name])
        if given.ndim != 1 or given.dtype.kind not in ("iu" if "i" in kind else "iuf"):
            raise ValueError(f"{name}: expected numbers of shape (n,), got {given.dtype} of shape {given.shape}")
        found[name] = given.astype(np.int64 if "i" in kind else np.float64)
    if len({len(column) for column in found.values()}) > 1:
        raise ValueError("expected columns of one length, got " + str({n: len(c) for n, c in found.items()}))
    return found
