"""The message of the quality metrics: the header of a record on ``quality``; its wire form is ``metric.schema.json``.

The record's value is the array and nothing else, its key is ``subarray/NN/metric``.
"""

from collections.abc import Callable
from typing import Literal

import msgspec

from facade.bus.port import Record
from facade.codec.decode import BatchDecoder, printable
from facade.codec.json_schema import compile_message
from facade.icd.model import Icd

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


def header_reader(icd: Icd) -> Callable[[Record], MetricHeader | str]:
    """Return a function that reads the header of a record; a text is the reason why there is none, with a detail."""
    check = BatchDecoder(compile_message("metric", icd.messages["metric"])).decode
    decode = msgspec.json.Decoder(MetricHeader).decode

    def read(record: Record) -> MetricHeader | str:
        raw = next((raw for name, raw in record.headers if name == METRIC), None)
        if raw is None:
            return f"no-header: expected a header {METRIC!r} that says what it is, got none"
        for rejected in check([raw]).rejected:
            return f"{rejected.reason}: headers.{METRIC}{rejected.path[1:]}: {rejected.detail}"
        header = decode(raw)
        if record.key != header.key.encode():
            key = printable(repr(record.key)[:200])
            return f"key: headers.{METRIC}: expected the record's key {key}, got {header.key}"
        return header

    return read


def metric_record(header: MetricHeader, content: bytes) -> Record:
    """Return the record of a metric."""
    headers = ((METRIC, msgspec.json.encode(header)),)
    return Record(topic=QUALITY, key=header.key.encode(), value=content, headers=headers)
