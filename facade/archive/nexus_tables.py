"""Tables of an archive as NXdata: columns of Arrow, and arrays of `.npy`.

The segments of a table go to a temporary file, from which its columns are read without a copy. Lists of a fixed size
are axes, with the schema's names; a last axis `real_imaginary` makes complex numbers, which are also stored as
amplitude and phase. The JSON in the schema's metadata is stored beside the columns. Other tables are an NXnote with
their bytes.
"""

import errno
import mmap
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import file_digest
from itertools import count
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from facade.archive.nexus_groups import append, child, draw, legal, text
from facade.kernel.bus.port import Record
from facade.kernel.codec.decode import BatchDecoder
from facade.kernel.outcome import RecordRejected
from facade.kernel.printable import excerpt
from facade.sdp.arrays import Array, ArrayError, pa, read_arrow, read_npy_header, view_npy, whole_column
from facade.sdp.messages import TableSegment

_PAIR: Final = "real_imaginary"
_UNITS: Final[Mapping[str, str]] = {"frequencies": "Hz", "valid_from": "us", "valid_until": "us"}
"""Units of the fields in the metadata of calibration solutions; a field of Arrow has its own as `unit` in its
metadata."""
_LONGEST = 1000
"""Longest text of the metadata that becomes an attribute."""
_PART = 4_000_000
"""Copied at once [bytes]."""
_FORMS: Final[Mapping[str, Mapping[str, Callable[[Array], Array]]]] = {
    "b": {"": lambda part: part.astype(np.uint8)},
    "c": {"_real": np.real, "_imag": np.imag, "_amplitude": np.abs, "_phase": np.angle},
}
"""Datasets of an array of booleans or of complex numbers, which readers of NeXus do not know."""
_LEAST_ROOM, _COPIES = 100_000_000, 3
"""Space that rows in memory may need [bytes], and number of copies of a table's values, with amplitudes."""


def require_room(folder: Path, more: int = 0) -> None:
    """Require disk space for data in memory and some `more` [bytes], as HDF5 loses data or crashes on a full disk."""
    if shutil.disk_usage(folder).free < _LEAST_ROOM + more:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@dataclass(slots=True)
class _Spool:
    header: TableSegment
    path: Path
    seen: dict[int, int] = field(default_factory=dict)


class TableGroups:
    """Assembles the tables of a topic, and writes the complete ones."""

    def __init__(self, group: Any, folder: Path) -> None:
        self._group, self._folder = group, folder
        self._headers = BatchDecoder(TableSegment)
        self._open: dict[tuple[str, str], _Spool] = {}
        self._numbers = count()

    def add(self, record: Record) -> RecordRejected | None:
        """Add a segment; return the reason if it or its table is unusable."""
        header = self._headers.decode_header(record.headers, "segment")
        if isinstance(header, RecordRejected):
            return header
        if header.url is not None or header.count == 0 or record.value is None:
            return None  # a reference, without the bytes
        key = header.product, header.table
        spool = self._open.setdefault(key, _Spool(header, self._folder / f"table-{next(self._numbers)}"))
        with spool.path.open("r+b" if spool.seen else "wb") as file:
            file.seek(*((0, 2) if header.start is None else (header.start,)))
            if file.tell() + len(record.value) > spool.header.size:
                return RecordRejected("size", "headers.segment", f"expected {spool.header.size} bytes, got more")
            file.write(record.value)
        spool.seen[header.index] = len(record.value)
        if len(spool.seen) < spool.header.count:
            return None
        del self._open[key]
        try:
            return self._write(spool.header, spool.path, sum(spool.seen.values()))
        finally:
            spool.path.unlink()

    def finish(self) -> Iterator[RecordRejected]:
        """Return the reason for each incomplete table, which is not in the file."""
        for spool in self._open.values():
            one = spool.header
            what = f"expected {one.count} segments of table {one.table}, got {len(spool.seen)} within the time"
            yield RecordRejected("incomplete", "headers.segment", excerpt(what))

    def _write(self, header: TableSegment, path: Path, size: int) -> RecordRejected | None:
        require_room(self._folder, _COPIES * size)
        with path.open("rb") as file:
            if size != header.size or file_digest(file, "sha256").hexdigest() != header.sha256:
                what = f"expected {header.size} bytes of table {header.table} with the digest that it has, got others"
                return RecordRejected("digest", "headers.segment.sha256", excerpt(what))
            write = _WRITERS.get(header.content_type.partition(";")[0].strip().lower()) if size else None
            content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b"")
        group = child(self._group, header.table, "NXdata" if write else "NXnote")
        group["title" if write else "description"] = text(f"{header.product} {header.table}")
        group.attrs.update({"table": header.table, "product": header.product, "kind": header.kind})
        try:
            (write or _write_note)(group, header, content)
        except Exception as error:  # the bytes are arbitrary, and so is the libraries' error
            del self._group[group.name]
            return RecordRejected("content", "$", excerpt(f"table {header.table}: {error!s:.200}"))
        return None


def _write_note(group: Any, header: TableSegment, content: memoryview) -> None:
    group["type"] = text(header.content_type)
    for begin in range(0, len(content), _PART):
        append(group, "data", np.frombuffer(content[begin : begin + _PART], np.uint8))


def _write_npy(group: Any, header: TableSegment, content: memoryview) -> None:
    array = view_npy(content, read_npy_header(content))
    signal = _write_array(group, header.kind.replace("-", "_"), array, "")
    draw(group, [signal], [f"index_{place}" for place in range(group[signal].ndim)])


def _write_arrow(group: Any, header: TableSegment, content: memoryview) -> None:
    table, _ = read_arrow(content, lambda schema: None)
    signals: list[tuple[str, list[str]]] = []
    for column in table.schema:
        array, axes = _flat(whole_column(table[column.name], column.name))
        name, unit = legal(column.name), ((column.metadata or {}).get(b"unit") or b"").decode()
        if array.dtype.kind not in "biufc":
            append(group, name, [*map(str, array)])
            continue
        name = _write_array(group, name, array, unit)
        if array.dtype.kind in "fciu":
            signals.append((name, axes))
    for said, value in _said(table.schema.metadata or {}).items():
        name = legal(said)
        if name in group or not isinstance(value, list):
            group.attrs[name] = value if isinstance(value, int | float) else text(str(value)[:_LONGEST])
        elif all(isinstance(one, int | float) for one in value):
            append(group, name, np.array(value, np.float64), units=_UNITS.get(name, ""))
        else:
            append(group, name, [*map(str, value)])
    if not signals:
        raise ArrayError("expected a column of numbers, got none")
    signal, axes = signals[0]
    sizes = group[signal].shape[1:]
    draw(group, [signal], ["row", *(_axis(group, name, size) for name, size in zip(axes, sizes, strict=True))])


def _said(metadata: Mapping[bytes, bytes]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for value in metadata.values():
        try:
            found |= msgspec.json.decode(value, type=dict[str, str | int | float | list[str | float]])
        except (msgspec.MsgspecError, UnicodeDecodeError):  # of a library's own
            continue
    return found


def _axis(group: Any, over: str, size: int) -> str:
    """Return the name of an axis: the frequencies of channels, or the schema's name."""
    known = "frequencies" if over == "channel" else ""
    return known if known in group and group[known].shape == (size,) else legal(over)


def _flat(array: Any) -> tuple[Array, list[str]]:
    """Return a column as an array, with the names of its further axes."""
    shape, axes = [len(array)], []
    while pa.types.is_fixed_size_list(array.type):
        shape.append(array.type.list_size)
        axes.append(array.type.value_field.name)
        array = array.flatten()
    values = np.asarray(array.to_numpy(zero_copy_only=False)).reshape(shape)
    if axes and axes[-1] == _PAIR and values.dtype in (np.float32, np.float64):
        values = values.view(np.complex64 if values.dtype == np.float32 else np.complex128)[..., 0]
        axes.pop()
    return values, axes


def _write_array(group: Any, name: str, array: Array, unit: str) -> str:
    """Write an array in chunks of rows; return the name of the dataset to draw."""
    array, of = array.reshape(-1) if not array.ndim else array, array.dtype.kind
    rows = max(_PART // max(array[:1].nbytes, 1), 1)
    for begin in range(0, len(array), rows):
        for suffix, form in _FORMS.get(of, {"": np.asarray}).items():
            units = "rad" if suffix == "_phase" else unit
            about = {"units": units} if of != "b" and (units or of in "fc") else {}
            append(group, f"{name}{suffix}", form(array[begin : begin + rows]), **about)
    return f"{name}_amplitude" if of == "c" else name


_WRITERS: Final = {"application/vnd.apache.arrow.stream": _write_arrow, "application/x-npy": _write_npy}
"""By media type; all others are notes."""
