"""Sends tables: in segments, or as a reference to a file or object; the bus confirms each."""

import hashlib
import math
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec

from facade.flows.tables.messages import CALIBRATION, encode, segment_decoder, segment_record
from facade.flows.tables.places import upload
from facade.kernel.bus.kafka.opening import OwnBus
from facade.kernel.bus.port import Record, Writer
from facade.kernel.clock import Clock, SystemClock
from facade.kernel.icd.load import load
from facade.kernel.icd.model import Icd
from facade.kernel.outcome import RecordRejected
from facade.sdp.messages import TableSegment

SEGMENT_BYTES = 1_000_000
CONFIRMED_WITHIN = 30.0
"""Default of the longest wait for the confirmation of some segments [s]."""
_AT_ONCE = 16_000_000
"""Size of the segments sent before a wait for their confirmation [bytes]."""
_HEADER_ROOM = 65_536
_CHUNK = 1_000_000

TableSource = bytes | bytearray | memoryview | Path
"""A whole table, in memory or as a file."""
ReportProgress = Callable[[Literal["hashed", "sent"], int], None]
"""Called with the number of bytes hashed so far, then with the number confirmed or written."""


class TableProducer(OwnBus):
    """Sends tables, or references to them.

    Parameters
    ----------
    writer
        Writes the records; by default the writer of an own bus, see `OwnBus`.
    timeout
        Longest wait for the confirmation of a batch of segments [s].
    client
        Name of the program, for the logs of the brokers.

    Examples
    --------
    >>> with TableProducer() as tables:
    ...     last = tables.send("subarray/01/gains", "gains", b"..." * 1000, ARROW, segment=1024)
    >>> last.index, last.count, last.size
    (2, 3, 3000)
    """

    def __init__(
        self,
        writer: Writer | None = None,
        clock: Clock | None = None,
        *,
        timeout: float = CONFIRMED_WITHIN,
        icd: Icd | None = None,
        client: str = "table-producer",
    ) -> None:
        icd = icd or load()
        self._writer = self._open(client) if writer is None else writer
        self._clock, self._timeout = clock or SystemClock(), timeout
        self._most = icd.topics[CALIBRATION].max_bytes - _HEADER_ROOM

    def send(
        self,
        product: str,
        kind: str,
        content: TableSource,
        content_type: str,
        *,
        table: str | None = None,
        segment: int = SEGMENT_BYTES,
        progress: ReportProgress = lambda what, size: None,
    ) -> TableSegment:
        """Send a table in segments, and return the header of the last one.

        Parameters
        ----------
        product
            The series to which the table belongs, such as ``subarray/01/gains``. Its newest table counts.
        kind
            The content: ``gains``, ``bandpass``, ``pointing``, ``sky-model`` or another word.
        content
            The bytes, or the path of a file.
        content_type
            Media type, such as `ARROW`.
        table
            Id of the table; by default a new one. After a failure give the same id again: segments that had arrived
            count once.
        segment
            Size of a segment [bytes].
        progress
            Called with ``"hashed"`` or ``"sent"``, and the number of bytes so far.

        Raises
        ------
        ValueError
            The schema forbids a value, or the file changed while it was sent.
        BusError
            The bus has not confirmed all segments.
        """
        if not 1 <= segment <= self._most:
            raise ValueError(f"segment: expected 1 to {self._most} bytes, got {segment}")
        with _reader(content) as read:
            size, digest = 0, hashlib.sha256()
            for part in read(_CHUNK):
                digest.update(part)
                size += len(part)
                progress("hashed", size)
            count = max(1, math.ceil(size / segment))
            header = self._header(product, kind, content_type, table, size=size, sha256=digest.hexdigest(), count=count)
            self._check_header(msgspec.structs.replace(header, index=count - 1))
            again = hashlib.sha256()
            return self._send_all(header, _hashed(read(segment), again), again, progress)

    def refer(
        self, url: str, product: str, kind: str, content_type: str, *, size: int, sha256: str, table: str | None = None
    ) -> TableSegment:
        """Send the URL of a table instead of its content. The table workers must be able to read it there.

        Parameters
        ----------
        url
            A ``file:``, ``https:`` or object-store URL below one of the deployment's roots.
        size, sha256
            Length [bytes] and checksum of the table, in hexadecimal digits.
        product, kind, content_type, table
            As for `send`, as are errors.
        """
        header = self._header(product, kind, content_type, table, size=size, sha256=sha256, count=0, url=url)
        self._check_header(header)
        self._writer.send_durably(segment_record(header, b""), self._timeout)
        return header

    def place(
        self,
        url: str,
        product: str,
        kind: str,
        content: TableSource,
        content_type: str,
        *,
        table: str | None = None,
        progress: ReportProgress = lambda what, size: None,
    ) -> TableSegment:
        """Write a table to a file or an object store, and send its URL; see `refer`.

        Parameters
        ----------
        url
            A new name below one of the deployment's roots of tables.
        product, kind, content, content_type, table, progress
            As for `send`.

        Raises
        ------
        ValueError
            The schema forbids a value. Nothing was written.
        ConfigError
            The table cannot be written there. Nothing was sent.
        BusError
            The table is there, but the bus has not confirmed the reference: call `refer`.
        """
        header = self._header(
            product, kind, content_type, table, size=0, sha256=hashlib.sha256().hexdigest(), count=0, url=url
        )
        self._check_header(header)
        size, digest = 0, hashlib.sha256()

        def parts() -> Iterator[bytes]:
            nonlocal size
            for part in read(_CHUNK):
                yield part
                digest.update(part)
                size += len(part)
                progress("sent", size)

        with _reader(content) as read:
            upload(url, parts())
        return self.refer(url, product, kind, content_type, size=size, sha256=digest.hexdigest(), table=header.table)

    def _header(self, product: str, kind: str, content_type: str, table: str | None, **about: Any) -> TableSegment:
        return TableSegment(
            table=table or uuid.uuid4().hex,
            product=product,
            kind=kind,
            content_type=content_type,
            index=0,
            sent_at=self._clock.now_us(),
            **about,
        )

    def _check_header(self, header: TableSegment) -> None:
        if isinstance(rejected := segment_decoder.decode_one(encode(header)), RecordRejected):
            raise ValueError(f"table of {header.product!r:.110}: {rejected.path}: {rejected.detail}")

    def _send_all(
        self, header: TableSegment, parts: Iterator[bytes], digest: "hashlib._Hash", report: ReportProgress
    ) -> TableSegment:
        batch: list[Record] = []
        sent, waiting = 0, 0
        for index, part in enumerate(parts):
            header = msgspec.structs.replace(header, index=index, start=sent + waiting)
            batch.append(segment_record(header, part))
            waiting += len(part)
            if waiting >= _AT_ONCE or index == header.count - 1:
                if index == header.count - 1 and digest.hexdigest() != header.sha256:
                    raise ValueError(f"table {header.table} has changed while it was sent; its last part was kept back")
                self._writer.send_all_durably(batch, self._timeout)
                sent, waiting, batch = sent + waiting, 0, []
                report("sent", sent)
        if header.index != header.count - 1:
            raise ValueError(f"table {header.table} has changed while it was sent: expected {header.size} bytes")
        return header


def _hashed(parts: Iterator[bytes], digest: "hashlib._Hash") -> Iterator[bytes]:
    empty = True
    for part in parts:
        digest.update(part)
        empty = False
        yield part
    if empty:
        yield b""


@contextmanager
def _reader(content: TableSource) -> Iterator[Callable[[int], Iterator[bytes]]]:
    if not isinstance(content, Path):
        whole = memoryview(content).cast("B")
        yield lambda size: (bytes(whole[at : at + size]) for at in range(0, len(whole), size))
        return
    with content.open("rb") as file:

        def read(size: int) -> Iterator[bytes]:
            file.seek(0)
            return iter(lambda: file.read(size), b"")

        yield read
