"""The records on ``quality``: the array and nothing else, with a header that says what it is.

The key of a record is ``subarray/NN/metric``.
"""

import msgspec

from facade.bus.port import Record
from facade.codec.decode import BatchDecoder
from facade.codec.plausible import wrong_key, wrong_unit
from facade.messages import Metric
from facade.outcome import Rejected

QUALITY = "quality"
"""Topic, by its name in the ICD."""
METRIC = "metric"
"""Header that says what the bytes of a record are."""

_decoder = BatchDecoder(Metric)


def key_of(header: Metric) -> str:
    """Return the key of the record of a metric."""
    return f"subarray/{header.subarray:02d}/{header.metric}"


def read_header(record: Record) -> Metric | Rejected:
    """Return the header of a record, or why there is none; whatever the record is, this does not raise."""
    header = _decoder.decode_header(record.headers, METRIC)
    if not isinstance(header, Metric):
        return header
    at = f"headers.{METRIC}"
    return (
        wrong_key(record.key, key_of(header), at)
        or wrong_unit(header.time, record.timestamp_us, f"{at}.time")
        or header
    )


def metric_record(header: Metric, content: bytes) -> Record:
    """Return the record of a metric."""
    headers = ((METRIC, msgspec.json.encode(header)),)
    return Record(topic=QUALITY, key=key_of(header).encode(), value=content, headers=headers)
