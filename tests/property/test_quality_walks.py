"""Any array is read as it was written, in each encoding; any bytes give one or a reason; what is shown is bounded."""

import math

import numpy as np
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from facade.flows.quality.flow import QualityFlow, fit
from facade.flows.quality.records import ENCODERS, decode
from facade.kernel.icd.load import load
from facade.kernel.outcome import USED, RecordRejected
from tests.support.metrics import WRITERS, dtype_of, metric

ICD = load()
MANY = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
WHOLE = arrays.boolean_dtypes() | arrays.integer_dtypes(endianness="=") | arrays.unsigned_integer_dtypes(endianness="=")
TYPES = WHOLE | arrays.floating_dtypes(endianness="=", sizes=(16, 32, 64))
SHAPES = arrays.array_shapes(min_dims=0, max_dims=2, max_side=9)
NAMES = arrays.arrays(
    np.dtype("U8"), arrays.array_shapes(max_dims=1, max_side=9), elements=st.sampled_from(["", "a", "SKA", "é"])
)
NUMBERS = TYPES.flatmap(lambda kind: arrays.arrays(kind, SHAPES))
ARRAYS = NUMBERS | NAMES
ENCODINGS = st.sampled_from(sorted(WRITERS))


@MANY
@given(array=ARRAYS, encoding=ENCODINGS, ours=st.booleans())
def test_any_array_is_read_as_it_was_written(array: np.ndarray, encoding: str, ours: bool) -> None:
    content = (ENCODERS if ours else WRITERS)[encoding](array)
    found = decode(encoding, content, array.shape, dtype_of(array))
    assert isinstance(found, np.ndarray), found
    assert (found.shape, dtype_of(found)) == (array.shape, dtype_of(array))
    if array.dtype.kind == "U":
        assert found.tolist() == array.tolist()
    else:
        assert found.tobytes() == array.tobytes()


@st.composite
def damaged(draw: st.DrawFn) -> tuple[str, bytes, np.ndarray]:
    """Return the bytes of an array with something changed, lost or added, and perhaps read as another encoding."""
    array, written, encoding = draw(ARRAYS), draw(ENCODINGS), draw(ENCODINGS)
    content = bytearray(WRITERS[written](array))
    for _ in range(draw(st.integers(0, 4))):
        content[draw(st.integers(0, len(content) - 1))] = draw(st.integers(0, 255))
    cut = draw(st.integers(0, len(content)))
    content = content[:cut] if draw(st.booleans()) else content
    return draw(st.sampled_from([written, encoding])), bytes(content + draw(st.binary(max_size=9))), array


@MANY
@given(case=damaged())
def test_damaged_bytes_have_a_reason_or_an_array_of_the_shape_that_was_said(
    case: tuple[str, bytes, np.ndarray],
) -> None:
    encoding, content, array = case
    found = decode(encoding, content, array.shape, dtype_of(array))
    if isinstance(found, RecordRejected):
        assert found.reason in ("npy", "arrow", "msgpack-numpy", "shape", "dtype", "text")
        assert found.detail
        assert len(found.detail) < 600
        assert found.detail.isprintable()
    else:
        assert (found.shape, dtype_of(found)) == (array.shape, dtype_of(array))
        assert np.array(found.tolist()).size == array.size


@MANY
@given(header=st.binary(max_size=80), value=st.none() | st.binary(max_size=80), key=st.none() | st.binary(max_size=30))
def test_any_record_is_used_left_out_or_has_a_reason(header: bytes, value: bytes | None, key: bytes | None) -> None:
    record = metric("flaggedFraction", 0.5)
    flow = QualityFlow(ICD, [1])
    whole = type(record)(topic="quality", key=key, value=value, headers=(("metric", header),))
    assert flow.fold(whole, count=True) != USED
    assert flow.measured[1].newest == {}


@MANY
@example(array=np.full((3, 3), np.finfo(np.float64).max), length=1, height=1)
@given(array=NUMBERS, length=st.integers(1, 5), height=st.integers(1, 5))
def test_what_is_shown_is_no_larger_than_the_attribute_and_within_the_values(
    array: np.ndarray, length: int, height: int
) -> None:
    most = (height, length)[2 - array.ndim :]
    value, known = fit(array, most)
    shown = np.array(value)
    assert shown.shape == tuple(map(min, array.shape, most))
    finite = array.astype(np.float64)
    finite = finite[np.isfinite(finite)]
    assert known == (finite.size > 0)
    assert not np.isinf(shown).any()
    if known:
        low, high = float(finite.min()), float(finite.max())
        span = max(abs(low), abs(high)) * 1e-9
        assert low - span <= np.nanmin(shown)
        assert np.nanmax(shown) <= high + span
    else:
        assert all(map(math.isnan, shown.reshape(-1)))
