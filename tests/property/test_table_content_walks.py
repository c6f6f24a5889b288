"""Any solution is read as it was written; any bytes have a summary or a reason, and summaries are finite and small."""

import io
import json
import math

import numpy as np
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from facade.flows.tables.content import ARROW, JSON, MOST_IMAGE, NPY, decode, encode, encode_pointing, summarise
from facade.flows.tables.simulator.cli import PointingSeries, SolutionScenario, SolutionSeries
from facade.flows.tables.solution import Solution
from tests.support.examples import examples

MANY = settings(
    max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
TIMES = st.integers(0, 2**53 - 1)
TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)


def numbers(width: int) -> st.SearchStrategy[complex]:
    """Return complex numbers, among them what is none, what is huge, and what float32 does not hold."""
    return st.complex_numbers(width=width, allow_nan=True, allow_infinity=True)


@st.composite
def solutions(draw: st.DrawFn) -> Solution:
    antennas = draw(st.lists(TEXTS, min_size=1, max_size=4, unique=True))
    polarisations = draw(st.lists(st.sampled_from(["XX", "XY", "YX", "YY", "R"]), min_size=1, max_size=4, unique=True))
    channels = draw(st.one_of(st.integers(1, 5), st.integers(60, 140)))
    shape = (len(antennas), channels, len(polarisations))
    kind, width = draw(st.sampled_from([(np.complex64, 64), (np.complex128, 128)]))
    begin, end = sorted([draw(TIMES), draw(TIMES)])
    return Solution(
        solution_id=draw(TEXTS),
        kind=draw(st.sampled_from(["gains", "bandpass"])),
        source_model=draw(st.one_of(st.just(""), TEXTS)),
        valid_from=begin,
        valid_until=end,
        antennas=tuple(antennas),
        frequencies=draw(arrays.arrays(np.float64, channels, elements=st.floats(1e-3, 1e15))),
        polarisations=tuple(polarisations),
        gains=draw(arrays.arrays(kind, shape, elements=numbers(width))),
        flags=draw(arrays.arrays(np.bool_, shape)),
        snr=draw(arrays.arrays(np.float32, shape[:2], elements=st.floats(width=32))),
    )


def require_finite(value: object) -> None:
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            require_finite(one)
    else:
        assert value is None or isinstance(value, str) or math.isfinite(value)


def looked_over(kind: str, media: str, content: bytes) -> dict | str:
    """Return the summary or the reason, whichever it is, when its form is that of one."""
    found = summarise(kind, media, memoryview(content))
    assert len(json.dumps(found, allow_nan=False)) < 1_000_000
    if isinstance(found, str):
        assert found.isprintable()
        assert 0 < len(found) < 600
        return found
    require_finite(found)
    if "amplitude" in found:
        rows, blocks = min(found["antenna_count"], MOST_IMAGE[0]), min(found["channels"], MOST_IMAGE[1])
        assert np.shape(found["amplitude"]) == np.shape(found["phase"]) == (rows, blocks)
        assert len(found["channel_frequencies"]) in (0, blocks)
        for name in ("antennas", "antenna_amplitude", "antenna_phase_rms", "antenna_flagged"):
            assert len(found[name]) == min(found["antenna_count"], 512)
    return found


@MANY
@given(written=solutions())
def test_any_solution_is_read_as_it_was_written(written: Solution) -> None:
    read = decode(encode(written))
    assert isinstance(read, Solution)
    for name in ("solution_id", "kind", "source_model", "valid_from", "valid_until", "antennas", "polarisations"):
        assert getattr(read, name) == getattr(written, name)
    for name in ("frequencies", "gains", "flags", "snr"):
        one, other = getattr(read, name), getattr(written, name)
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tobytes() == other.tobytes()


@MANY
@given(written=solutions())
def test_the_summary_of_any_solution_holds(written: Solution) -> None:
    """Each cell lies within the gains of its block, and is null exactly where none counts."""
    found = looked_over(written.kind, ARROW, encode(written))
    with np.errstate(all="ignore"):
        amplitude = np.abs(written.gains.astype(np.complex64))
    finite = np.isfinite(amplitude)
    if isinstance(found, str):
        assert not finite.any()
        return
    usable = finite & ~written.flags
    assert found["not_finite"] == np.count_nonzero(~finite)
    assert math.isclose(found["flagged_fraction"], 1 - usable.mean(), rel_tol=1e-4, abs_tol=1e-9)
    parallel = [name in ("XX", "YY") for name in written.polarisations]
    counts = usable & (parallel if any(parallel) else [True] * len(parallel))
    channels, blocks = found["channels"], len(found["amplitude"][0])
    for antenna in range(len(written.antennas)):
        for block in range(blocks):
            part = slice(block * channels // blocks, (block + 1) * channels // blocks)
            members = amplitude[antenna, part][counts[antenna, part]]
            cell, phase = found["amplitude"][antenna][block], found["phase"][antenna][block]
            assert (cell is None) == (phase is None) == (not len(members))
            if cell is not None:
                assert float(members.min()) * 0.9999 <= cell <= float(members.max()) * 1.0001
                assert abs(phase) <= 3.1416


def written_npy(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


SAMPLE = SolutionSeries(SolutionScenario(antennas=3, channels=9)).next(1_800_000_000_000_000)
WHOLE = [
    ("gains", ARROW, encode(SAMPLE)),
    ("gains", NPY, written_npy(SAMPLE.gains)),
    ("gains", NPY, written_npy(np.asfortranarray(SAMPLE.gains[..., 0]))),
    ("pointing", JSON, encode_pointing(PointingSeries(["SKA001", "SKA002"]).next())),
]


@st.composite
def damaged(draw: st.DrawFn) -> tuple[str, str, bytes]:
    """Return a table of which some bytes are others, or lost, or there twice."""
    kind, media, whole = draw(st.sampled_from(WHOLE))
    content = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        # The beginning, which says what the rest is, is hit as often as all the rest.
        at = draw(st.one_of(st.integers(0, len(content)), st.integers(0, min(len(content), 1500))))
        length = draw(st.sampled_from([1, 1, 2, 4, 8, 50]))
        match draw(st.sampled_from(["replace", "extreme", "cut", "insert", "end"])):
            case "replace":
                content[at : at + length] = draw(st.binary(min_size=length, max_size=length))
            case "extreme":
                content[at : at + length] = draw(st.sampled_from([b"\0", b"\xff", b"\x7f", b"\x80"])) * length
            case "cut":
                del content[at : at + length]
            case "insert":
                content[at:at] = content[at : at + length]
            case _:
                del content[at:]
    return kind, media, bytes(content)


@settings(MANY, max_examples=examples(800))
@given(table=damaged())
def test_damaged_tables_have_a_summary_or_a_reason(table: tuple[str, str, bytes]) -> None:
    looked_over(*table)


@MANY
@given(content=st.binary(max_size=300), which=st.sampled_from(WHOLE))
@example(content=b"\xff\xff\xff\xff\x00\x00\x00\x7f" + bytes(50), which=WHOLE[0])
@example(content=b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(50), which=WHOLE[1])
def test_any_bytes_have_a_summary_or_a_reason(content: bytes, which: tuple[str, str, bytes]) -> None:
    looked_over(which[0], which[1], content)
