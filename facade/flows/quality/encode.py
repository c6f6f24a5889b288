"""Writes the array of a metric in each encoding: what a producer of metrics uses."""

import io
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec
import numpy as np

from facade.bus.port import Record
from facade.codec.arrays import Array, pa
from facade.errors import ConfigError
from facade.flows.quality.decode import COLUMN, TEXT
from facade.flows.quality.messages import metric_record
from facade.messages import Metric, MetricDtype, MetricEncoding

_encode = msgspec.msgpack.Encoder().encode


def encode_metric(
    array: Array,
    *,
    subarray: int,
    metric: str,
    time: int,
    unit: str = "",
    encoding: MetricEncoding = "npy",
    **more: Any,
) -> Record:
    """Return the record of a metric.

    Parameters
    ----------
    array
        A number, a spectrum or an image of real numbers, or names.
    metric
        Name of the attribute of SdpQuality that shows it.
    time
        Of the data [Unix us].
    **more
        scan_id, source and sequence, as in the message `metric`.

    Raises
    ------
    ConfigError
        Arrow is wanted, and its library is not installed.

    Examples
    --------
    >>> import numpy as np
    >>> writer = open_bus("quality-pipeline").writer()
    >>> spectrum = np.ones(1024, np.float32)
    >>> record = encode_metric(spectrum, subarray=1, metric="bandpassAmplitude", time=1795276800000000, unit="Jy")
    >>> writer.send_durably(record, 5.0)
    """
    array = np.ascontiguousarray(array).reshape(np.shape(array))
    header = Metric(
        subarray=subarray,
        metric=metric,
        time=time,
        encoding=encoding,
        shape=list(array.shape),
        dtype=cast(MetricDtype, TEXT if array.dtype.kind == "U" else array.dtype.name),
        unit=unit,
        **more,
    )
    return metric_record(header, ENCODERS[encoding](array))


def _npy(array: Array) -> bytes:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=False)
    return out.getvalue()


def _msgpack_numpy(array: Array) -> bytes:
    return _encode(
        {b"nd": True, b"type": array.dtype.str, b"kind": b"", b"shape": array.shape, b"data": array.tobytes()}
    )


def _arrow(array: Array) -> bytes:
    if pa is None:
        raise ConfigError("Arrow needs pyarrow: pip install 'sdp-tango-facade[tables]'")
    flat = array.reshape(-1).astype(array.dtype.newbyteorder("="))
    column = pa.array(flat.tolist(), pa.string()) if array.dtype.kind == "U" else pa.array(flat)
    for size in reversed(array.shape[1:]):
        column = pa.FixedSizeListArray.from_arrays(column, size)
    batch = pa.record_batch([column], names=[COLUMN])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


ENCODERS: Mapping[MetricEncoding, Callable[[Array], bytes]] = {
    "npy": _npy,
    "arrow": _arrow,
    "msgpack-numpy": _msgpack_numpy,
}
