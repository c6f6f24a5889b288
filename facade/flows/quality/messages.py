"""The message of the quality metrics: the header of a record on ``quality``; its wire form is ``metric.schema.json``.

The record's value is the array and nothing else, its key is ``subarray/NN/metric``.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import msgspec

from facade.bus.port import Record
from facade.codec.decode import BatchDecoder, printable
from facade.codec.json_schema import compile_message
from facade.icd.model import Icd
from facade.outcome import Rejected, Unused

QUALITY = "quality"
"""Topic, by its name in the ICD."""
METRIC = "metric"
"""Header that says what the bytes of a record are."""

Encoding = Literal["npy", "arrow", "msgpack-numpy"]


class MetricHeader(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="schema", tag="metric/1", kw_only=True):
    """What a record on ``quality`` is; the wire form is ``metric.schema.json``."""

    subarray: int
    metric: str
    time: int
    """Of the data [Unix us]."""
    encoding: Encoding
    shape: tuple[int, ...]
    dtype: str
    """As numpy names it; ``str`` for names."""
    unit: str
    scan_id: int | msgspec.UnsetType = msgspec.UNSET
    source: str | msgspec.UnsetType = msgspec.UNSET
    sequence: int | msgspec.UnsetType = msgspec.UNSET

    @property
    def key(self) -> str:
        """Return the key of its record."""
        return f"subarray/{self.subarray:02d}/{self.metric}"


def header_reader(icd: Icd) -> Callable[[Record], MetricHeader | Unused]:
    """Return a function that reads the header of a record, or says why there is none."""
    check = BatchDecoder(compile_message("metric", icd.messages["metric"])).decode_one
    decode = msgspec.json.Decoder(MetricHeader).decode

    def read(record: Record) -> MetricHeader | Unused:
        raw = next((raw for name, raw in record.headers if name == METRIC), None)
        if raw is None:
            return Rejected("no-header", "headers", f"expected a header {METRIC!r} that says what it is, got none")
        if isinstance(rejected := check(raw), Rejected):
            return replace(rejected, path=f"headers.{METRIC}{rejected.path[1:]}")
        header = decode(raw)
        if record.key != header.key.encode():
            key = printable(repr(record.key)[:200])
            return Rejected("key", f"headers.{METRIC}", f"expected the record's key {key}, got {header.key}")
        return header

    return read


def metric_record(header: MetricHeader, content: bytes) -> Record:
    """Return the record of a metric."""
    headers = ((METRIC, msgspec.json.encode(header)),)
    return Record(topic=QUALITY, key=header.key.encode(), value=content, headers=headers)
