"""Contents of tables: what is written is read again, contradictions have a reason, and summaries say the truth."""

import dataclasses
import io
import json
import tracemalloc

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from facade.flows.tables.content import (
    ARROW,
    JSON,
    NPY,
    _median,
    decode,
    encode,
    encode_pointing,
    picture,
    summarise,
)
from facade.flows.tables.simulator.cli import PointingSeries, SolutionScenario, SolutionSeries
from facade.flows.tables.solution import HEADER, Solution, decode_npy
from facade.simulate.array import MID

NOW_US = 1_800_000_000_000_000


def solution(**changes) -> Solution:
    """Return 3 antennas x 4 channels x 2 polarisations: 1, 2 and 3, all of them in phase."""
    gains = np.ones((3, 4, 2), np.complex64) * np.array([1, 2, 3], np.complex64)[:, np.newaxis, np.newaxis]
    values = {
        "solution_id": "night-7",
        "kind": "gains",
        "source_model": "J1939-6342",
        "valid_from": NOW_US,
        "valid_until": NOW_US + 600_000_000,
        "antennas": ("SKA001", "SKA002", "MKT007"),
        "frequencies": np.array([1.0e9, 1.1e9, 1.2e9, 1.3e9]),
        "polarisations": ("XX", "YY"),
        "gains": gains,
        "flags": np.zeros(gains.shape, np.bool_),
        "snr": np.full((3, 4), 50, np.float32),
    }
    return Solution(**{**values, **changes})


def same(one: Solution, other: Solution) -> bool:
    return all(
        np.array_equal(getattr(one, name), getattr(other, name)) for name in (f.name for f in dataclasses.fields(one))
    )


def altered(header=None, columns=None, names=None, **options) -> bytes:
    """Write a table with some of it changed, by somebody who does not look at what they write."""
    with pa.ipc.open_stream(encode(solution())) as reader:
        table = reader.read_all()
    fields = {**msgspec.json.decode(table.schema.metadata[HEADER]), **(header or {})}
    arrays = {name: table[name].combine_chunks() for name in table.column_names} | (columns or {})
    fields = {name: value for name, value in fields.items() if value is not None}
    written = pa.table(list(arrays.values()), names=names or list(arrays), metadata={HEADER: json.dumps(fields)})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, written.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(written, max_chunksize=1)
    return sink.getvalue()


def nested(values, *names) -> pa.Array:
    array = pa.array(np.asarray(values).reshape(-1))
    for name, size in reversed(list(zip(names, np.shape(values)[1:], strict=True))):
        array = pa.FixedSizeListArray.from_arrays(array, type=pa.list_(pa.field(name, array.type), size))
    return array


def npy(array) -> bytes:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=True)
    return out.getvalue()


def summary(one: Solution) -> dict:
    found = summarise(one.kind, ARROW, memoryview(encode(one)))
    assert isinstance(found, dict), found
    json.dumps(found, allow_nan=False)
    return found


def test_the_gains_are_read_without_a_copy():
    content = encode(solution())
    read = decode(content)
    place = np.frombuffer(content, np.uint8).__array_interface__["data"][0]
    assert place <= read.gains.__array_interface__["data"][0] < place + len(content)


def case(value):
    """Name a case the same in each process: the text of an array has its address in it."""
    return json.dumps(value, default=lambda array: str(array.type)) if isinstance(value, dict) else value


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"header": {"valid_until": NOW_US - 1}}, f"valid_until: expected {NOW_US} or later, got {NOW_US - 1}"),
        ({"header": {"antennas": 4}}, "antennas: expected 4 rows"),
        ({"header": {"antennas": 10**9}}, "`int` <= 4096"),
        ({"header": {"frequencies": [1e9, 2e9]}}, "gain: expected lists of 2 over channel, got 4"),
        ({"header": {"frequencies": [1e9, 2e9, 3e9, -1.0]}}, "`float` > 0"),
        ({"header": {"polarisations": ["XX"]}}, "expected lists of 1 over polarisation, got 2"),
        ({"header": {"polarisations": ["XX", "XX"]}}, "polarisations: expected different names"),
        ({"header": {"kind": "delays"}}, "Invalid enum value 'delays'"),
        ({"header": {"solution_id": None}}, "missing required field `solution_id`"),
        ({"header": {"valid_from": "now"}}, "Expected `int`, got `str`"),
        ({"header": {"colour": "blue"}}, "unknown field `colour`"),
        ({"columns": {"antenna": pa.array(["A", "B", "A"])}}, "expected different names"),
        ({"columns": {"antenna": pa.array(["A", "B", None])}}, "antenna: expected values everywhere, got 1 nulls"),
        ({"columns": {"antenna": pa.array(["A", "B", "x" * 41])}}, "names of 1 to 40 characters"),
        ({"columns": {"antenna": pa.array([1, 2, 3])}}, "antenna: expected string, got int64"),
        ({"columns": {"snr": nested(np.ones((3, 5), np.float32), "channel")}}, "snr: expected lists of 4 over channel"),
        ({"columns": {"snr": pa.array([1.0, 2.0, 3.0])}}, "snr: expected lists over channel of float or double"),
        ({"names": ["antenna", "gains", "flag", "snr"]}, "expected the columns antenna, gain, flag, snr, got"),
        ({"compression": "zstd"}, "not compressed"),
    ],
    ids=case,
)
def test_a_table_that_contradicts_itself_has_a_reason(changes, reason):
    assert reason in decode(altered(**changes))


def test_the_other_order_of_complex_numbers_is_refused():
    """Both orders have the same bytes: only the name tells them apart."""
    parts = np.ones((3, 4, 2, 2), np.float32)
    wrong = altered(columns={"gain": nested(parts, "channel", "polarisation", "imaginary_real")})
    reason = decode(wrong)
    assert "channel of polarisation of real_imaginary of float" in reason
    assert "got channel of polarisation of imaginary_real of float" in reason
    right = altered(columns={"gain": nested(parts, "channel", "polarisation", "real_imaginary")})
    assert isinstance(decode(right), Solution)


def test_a_null_among_the_gains_is_refused():
    array = pa.array([1.0] * 47 + [None], pa.float32())
    for name, size in (("real_imaginary", 2), ("polarisation", 2), ("channel", 4)):
        array = pa.FixedSizeListArray.from_arrays(array, type=pa.list_(pa.field(name, array.type), size))
    assert "gain: expected values everywhere" in decode(altered(columns={"gain": array}))


@pytest.mark.parametrize(
    "changes",
    [
        {"valid_until": 5},
        {"antennas": ("A", "B")},
        {"frequencies": np.array([1e9])},
        {"frequencies": np.array([1e9, 2e9, 3e9, np.nan])},
        {"flags": np.zeros((3, 4), np.bool_)},
        {"snr": None},
        {"kind": "delays"},
        {"gains": np.ones((3, 4, 2))},
    ],
    ids=str,
)
def test_a_solution_that_contradicts_itself_is_not_written(changes):
    with pytest.raises(ValueError, match="night-7"):
        encode(solution(**changes))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kind", ["<c8", ">c8", "<c16", ">c16"])
def test_npy_is_read(order, kind):
    array = np.asarray(solution().gains.astype(kind), order=order)
    read = decode_npy(npy(array), "gains")
    assert np.array_equal(read.gains, array)
    assert read.antennas == ("0", "1", "2")
    assert not read.flags.any()
    flat = decode_npy(npy(array[:, :, 0]), "gains")
    assert np.array_equal(flat.gains, array[:, :, :1])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "expected .npy"),
        (b"\x93NUMPY\x01\x00", "expected .npy"),
        (b"\x93NUMPY\x09\x00" + bytes(90), "version 1.0 or 2.0, got 9.0"),
        (npy(np.ones((2, 3))), "expected complex64 or complex128, got float64"),
        (npy(np.ones((2, 3), np.clongdouble)), "expected complex64 or complex128"),
        (npy(np.array([{}, {}])), "expected complex64 or complex128, got object"),
        (npy(np.ones(4, np.complex64)), "antenna x channel"),
        (npy(np.ones((2, 0), np.complex64)), "something in it"),
        (npy(np.ones((2, 3, 5), np.complex64)), "at most the shape (4096, 1000000, 4), got (2, 3, 5)"),
        (npy(np.ones((5000, 1), np.complex64)), "at most the shape"),
        (npy(np.ones((2, 3), np.complex64))[:-1], "expected 48 bytes for shape (2, 3), got 47"),
        (npy(np.ones((2, 3), np.complex64)).replace(b"(2, 3)", b"(4096, 10**15)"), "expected .npy"),
        (npy(np.ones((2, 3), np.complex64)).replace(b"(2, 3), }     ", b"(2, 3000000), "), "expected"),
    ],
    ids=range(13),
)
def test_npy_that_cannot_be_has_a_reason_before_anything_is_made_of_it(content, reason):
    assert reason in decode_npy(content, "gains")


def test_a_summary_says_what_is_in_a_solution():
    found = summary(solution())
    assert found == {
        "solution_id": "night-7",
        "kind": "gains",
        "source_model": "J1939-6342",
        "valid_from": NOW_US,
        "valid_until": NOW_US + 600_000_000,
        "antennas": ["SKA001", "SKA002", "MKT007"],
        "antenna_count": 3,
        "channels": 4,
        "polarisations": ["XX", "YY"],
        "flagged_fraction": 0.0,
        "not_finite": 0,
        "snr": 50.0,
        "amplitude": [[1.0] * 4, [2.0] * 4, [3.0] * 4],
        "phase": [[0.0] * 4] * 3,
        "channel_frequencies": [1.0e9, 1.1e9, 1.2e9, 1.3e9],
        "antenna_amplitude": [1.0, 2.0, 3.0],
        "antenna_phase_rms": [0.0, 0.0, 0.0],
        "antenna_flagged": [0.0, 0.0, 0.0],
    }


def test_the_phase_rms_is_about_the_mean_of_each_polarisation_and_never_wraps():
    gains = np.ones((3, 4, 2), np.complex64)
    gains[..., 1] = np.exp(3.1j)
    gains[1, :, 1] = np.exp(1j * (np.pi + np.array([-0.2, 0.2, -0.2, 0.2])))
    assert summary(solution(gains=gains))["antenna_phase_rms"] == [0.0, pytest.approx(0.2 / np.sqrt(2), abs=1e-4), 0.0]


def test_a_large_table_has_a_small_summary():
    found = summary(SolutionSeries(SolutionScenario(antennas=600, channels=100)).next(NOW_US))
    assert found["antenna_count"] == 600
    assert len(found["antennas"]) == len(found["antenna_amplitude"]) == len(found["antenna_flagged"]) == 512
    assert np.shape(found["amplitude"]) == np.shape(found["phase"]) == (197, 64)
    assert len(found["channel_frequencies"]) == 64
    assert len(json.dumps(found)) < 1_000_000


@pytest.mark.parametrize(("kind", "media"), [("sky-model", ARROW), ("gains", "image/png"), ("pointing", ARROW)])
def test_of_what_is_not_known_there_is_a_note(kind, media):
    found = summarise(kind, media, memoryview(b"whatever"))
    assert list(found) == ["note"]
    assert kind in found["note"]


def test_pointing_offsets_are_by_dish():
    offsets = PointingSeries(MID.names(3), first_scan=9).next()
    found = summarise("pointing", JSON, memoryview(encode_pointing(offsets)))
    assert list(found["pointing"]) == ["SKA001", "SKA002", "SKA003"]
    assert found["pointing"]["SKA002"] == [9, offsets[1].cross_elevation, offsets[1].elevation]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "expected a list"),
        (b"{}", "Expected `array`"),
        (b'[{"dish": "A", "scan_id": 1, "elevation": 0.1}]', "missing required field `cross_elevation`"),
        (b'[{"dish": "A", "scan_id": 1, "cross_elevation": NaN, "elevation": 0.1}]', "expected a list"),
        (b'[{"dish": "A", "scan_id": 1, "cross_elevation": 1e999, "elevation": 0.1}]', "expected a list"),
        (b'[{"dish": "A", "scan_id": -1, "cross_elevation": 0, "elevation": 0}]', "`int` >= 0"),
        (b'[{"dish": "\xff\xfe", "scan_id": 1, "cross_elevation": 0, "elevation": 0}]', "expected a list"),
        (b"[%s]" % b",".join([b'{"dish": "A", "scan_id": 1, "cross_elevation": 0, "elevation": 0}'] * 2), "each dish"),
        (encode_pointing(PointingSeries([f"D{i}" for i in range(513)]).next()), "at most 512 dishes, got 513"),
        (b" " * 1_000_001, "at most 1000000 bytes"),
        (b"[" * 100_000, "expected a list"),
    ],
    ids=range(11),
)
def test_pointing_offsets_that_cannot_be_have_a_reason(text, reason):
    assert reason in summarise("pointing", JSON, memoryview(text))


def png_size(content: bytes) -> tuple[int, int]:
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    return int.from_bytes(content[16:20], "big"), int.from_bytes(content[20:24], "big")


@pytest.mark.parametrize("holes", [False, True])
def test_a_picture_of_any_summary_is_a_png(holes):
    one = solution(flags=np.full((3, 4, 2), holes))
    assert png_size(picture(summary(one))) == (1320, 704)
    assert picture(summary(one)) == picture(summary(one))


def test_flagged_gains_count_nowhere_and_holes_are_null():
    one = solution()
    one.flags[1], one.flags[0, 2] = True, True
    one.flags[2, 0, 1] = True
    one.gains[1], one.gains[0, 2], one.gains[2, 0, 1] = 1e6, 1e6, 1e6
    one.snr[1] = 1e6
    found = summary(one)
    assert found["amplitude"] == [[1.0, 1.0, None, 1.0], [None] * 4, [3.0] * 4]
    assert found["phase"] == [[0.0, 0.0, None, 0.0], [None] * 4, [0.0] * 4]
    assert found["antenna_amplitude"] == [1.0, None, 3.0]
    assert found["antenna_phase_rms"] == [0.0, None, 0.0]
    assert found["antenna_flagged"] == [0.25, 1.0, 0.125]
    assert found["flagged_fraction"] == pytest.approx(11 / 24, rel=1e-4)
    assert found["snr"] == 50.0


def test_channels_are_averaged_in_blocks_of_neighbours():
    """130 channels in 64 blocks, of two or three: by hand for each of them; the mean of gains that turn is complex."""
    channels = 130
    gains = (np.arange(1, channels + 1) * np.exp(0.3j * np.arange(channels))).astype(np.complex64)
    one = solution(
        antennas=("A",),
        polarisations=("XX",),
        frequencies=np.arange(1, channels + 1) * 1e6,
        gains=gains.reshape(1, channels, 1),
        flags=np.zeros((1, channels, 1), np.bool_),
        snr=np.ones((1, channels), np.float32),
    )
    one.flags[0, 5] = True
    found = summary(one)
    begins = [block * channels // 64 for block in range(64)] + [channels]
    for block in range(64):
        members = [c for c in range(begins[block], begins[block + 1]) if c != 5]
        frequencies = [(c + 1) * 1e6 for c in range(begins[block], begins[block + 1])]
        assert found["amplitude"][0][block] == pytest.approx(np.mean([c + 1 for c in members]), rel=1e-4)
        assert found["phase"][0][block] == pytest.approx(np.angle(gains[members].sum()), abs=1e-4)
        assert found["channel_frequencies"][block] == pytest.approx(np.mean(frequencies))


def test_npy_has_a_summary_without_names_and_times():
    found = summarise("bandpass", NPY, memoryview(npy(solution().gains)))
    assert (found["amplitude"], found["antennas"]) == ([[1.0] * 4, [2.0] * 4, [3.0] * 4], ["0", "1", "2"])
    assert (found["solution_id"], found["valid_from"], found["snr"], found["channel_frequencies"]) == (
        "",
        None,
        None,
        [],
    )


def test_a_file_is_summarised_as_its_content_is(tmp_path):
    file = tmp_path / "table"
    file.write_bytes(encode(solution()))
    assert summarise("gains", ARROW, file) == summary(solution())
    file.write_bytes(b"")
    assert "expected" in summarise("gains", ARROW, file)
    with pytest.raises(FileNotFoundError):
        summarise("gains", ARROW, tmp_path / "none")


@pytest.mark.parametrize("batch", [1, 7, 64], ids=["a batch for each antenna", "some batches", "one batch"])
def test_the_summary_of_a_large_table_needs_a_small_part_of_its_size(batch):
    """It had a copy of all flags as bytes and of all ratios, and of all gains if they were in several batches."""
    random, shape = np.random.default_rng(7), (64, 8192, 2)
    gains = (random.normal(size=shape) + 1j * random.normal(size=shape)).astype(np.complex64)
    snr = random.gamma(9.0, 5.0, shape[:2]).astype(np.float32)
    whole = solution(
        antennas=tuple(f"SKA{number:03d}" for number in range(64)), frequencies=np.linspace(0.9e9, 1.7e9, 8192),
        gains=gains, flags=random.random(shape) < 0.3, snr=snr,
    )  # fmt: skip
    with pa.ipc.open_stream(encode(whole)) as reader:
        table = reader.read_all()
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=batch)
    content = sink.getvalue()
    assert same(decode(content), whole)
    pool = pa.proxy_memory_pool(pa.default_memory_pool())
    usual = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        summary = summarise("gains", ARROW, memoryview(content))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(usual)
    assert peak + pool.max_memory() < len(content) / 5, (peak, pool.max_memory(), len(content))
    usable = ~whole.flags.all(axis=2)
    assert summary["snr"] == pytest.approx(float(np.median(snr[usable])), rel=1e-4)


@pytest.mark.parametrize("count", [0, 1, 2, 5, 1000])
def test_the_median_of_ratios_is_exact(count):
    """Of numbers of both signs, of which many are alike, and of a part of them that is empty."""
    values = np.random.default_rng(count).normal(size=count).astype(np.float32).round(2)
    expected = np.median(values.astype(np.float64)) if count else np.nan
    parts = [values[: count // 3], values[:0], values[count // 3 :]]
    assert np.array_equal(_median(lambda: iter(parts)), expected, equal_nan=True)
