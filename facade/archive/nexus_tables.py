"""Tables of an archive as NXdata: columns of Arrow, and arrays of `.npy`.

The segments of a table are assembled as workers assemble them (`facade.flows.tables.assembly`), and columns are read
from its bytes without a copy. Lists of a fixed size are axes, with the schema's names; a last axis `real_imaginary`
makes complex numbers, which are also stored as amplitude and phase. The JSON in the schema's metadata is stored beside
the columns. Other tables are an NXnote with their bytes.
"""

import errno
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Final

import msgspec
import numpy as np

from facade.archive.nexus_groups import append, child, draw, legal, text
from facade.flows.tables.assembly import STORAGE, Assembly, AssemblyLimits, Ended
from facade.flows.tables.buffers import BufferPool
from facade.flows.tables.content import as_view
from facade.flows.tables.messages import read_header
from facade.kernel.bus.port import Record
from facade.kernel.outcome import TOMBSTONE, RecordRejected, Unused
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
_MEMORY = 32_000_000
"""Size of the tables under way in memory, beyond which they go to files [bytes]."""
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


def write_tables(group: Any, folder: Path, records: Iterable[Record]) -> Iterator[Unused]:
    """Write the complete tables among some segments; return the reasons against other records and tables."""
    pool = BufferPool(_MEMORY, lambda: TemporaryFile(buffering=0, dir=folder))
    assembly = Assembly(pool, AssemblyLimits(disk=sys.maxsize, segments=sys.maxsize))
    for record in records:
        header = TOMBSTONE if record.value is None else read_header(record)
        if not isinstance(header, TableSegment):
            yield header
        elif (known := assembly.judge(header, record.partition)) is not None:
            yield known
        elif header.count:  # a reference is without the bytes
            for ended in assembly.add(header, record, 0.0):
                if why := ended.rejected or _write(group, folder, ended):
                    yield why
                ended.close()
    for table in assembly:
        table.buffer.close()
        what = f"expected all segments within the time, got {table}"
        yield RecordRejected("incomplete", "headers.segment", excerpt(what))


def _write(parent: Any, folder: Path, ended: Ended) -> RecordRejected | None:
    header = ended.table.header
    if ended.content is None:
        return RecordRejected(STORAGE, "$", ended.unseen)
    require_room(folder, _COPIES * header.size)
    write = _WRITERS.get(header.content_type.partition(";")[0].strip().lower()) if header.size else None
    group = child(parent, header.table, "NXdata" if write else "NXnote")
    group["title" if write else "description"] = text(f"{header.product} {header.table}")
    group.attrs.update({"table": header.table, "product": header.product, "kind": header.kind})
    try:
        (write or _write_note)(group, header, as_view(ended.content))
    except Exception as error:  # the bytes are arbitrary, and so is the libraries' error
        del parent[group.name]
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
