"""NeXus files out of an archive, read with plain h5py and judged by a validator."""

import fcntl
import io
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import chexus
import h5py
import msgspec
import numpy as np
import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner

from facade.archive import nexus, nexus_groups
from facade.archive.files import ArchiveError
from facade.archive.nexus import export, find_time
from facade.archive.nexus_groups import QUALITIES
from facade.archive.stores import FolderStore
from facade.flows.tables.solution import Solution
from facade.flows.tables.solution import encode as encode_solution
from facade.flows.telemetry.worker import telemetry_worker
from facade.kernel.bus.memory import MemoryLog
from facade.kernel.bus.port import Record
from facade.kernel.cli.app import app
from facade.kernel.clock import ManualClock
from facade.kernel.config import Settings
from facade.kernel.errors import ConfigError
from facade.kernel.icd.units import UNITS, udunits
from facade.kernel.resources import resource
from facade.sdp.messages import (
    Alert,
    AlertAction,
    Command,
    CommandAck,
    FieldColumns,
    FieldStatistics,
    IngestSummary,
    Partial,
    RackSummary,
    State,
    TelemetrySummary,
    TelescopeAttribute,
    Watermark,
)
from tests.support.archives import HOUR, ICD, START, archive
from tests.support.columnar import columnar, summed
from tests.support.heaps import BASE_US, encoded, heap
from tests.support.simulated_bus import MemoryBroker, MemoryTransactionalLog
from tests.support.tables import cut

pytestmark = pytest.mark.needs("test")

SECOND = 1_000_000
EB = "eb-test-20270114-00001"
SUBARRAY = "mid-sdp/subarray/01"
UDUNITS = {
    *("", "%", "1/s", "degC", "s", "us", "Hz", "rad", "Jy", "byte", "count", "s/s", "us/s", "Hz/s", "rad/s", "Jy/s"),
    *("byte/s", "count/s"),
}
"""Units of ours that UDUNITS knows, as `scipp.Unit` says."""


def put(log: MemoryLog, topic: str, at_us: int, message: msgspec.Struct | bytes | None, **more: Any) -> None:
    value = msgspec.json.encode(message) if isinstance(message, msgspec.Struct) else message
    log.append(Record(topic=topic, key=b"k", value=value, partition=0, timestamp_us=at_us, **more))


def archive_of(folder: Path, log: MemoryLog, *topics: str) -> FolderStore:
    store = FolderStore(folder / "archive")
    archive(log, store, *topics)
    return store


def written(folder: Path, log: MemoryLog, *topics: str, begin: int = START, end: int = START + HOUR) -> h5py.File:
    """Return the file of an archive of some topics."""
    path = folder / "night.nxs"
    export(archive_of(folder, log, *topics), ICD, path, begin, end, replace=True)
    return h5py.File(path)


def texts(dataset: Any) -> list[str]:
    return dataset.asstr()[:].tolist()


def units(dataset: Any) -> str:
    return str(dataset.attrs["units"])


def judge(path: Path) -> list[str]:
    """Return what the validator objects to."""
    with closing(chexus.read_hdf5(str(path))) as trees:
        results = chexus.validate(next(trees), chexus.validators.base_validators(has_scipp=False))
    said = [f"{one.validator.name} {found.name}" for one in results.values() for found in one.violations]
    with h5py.File(path) as file:
        file.visititems(lambda name, one: said.extend(f"{name}: {what}" for what in unreadable(one)))
    return said


def unreadable(one: Any) -> Iterator[str]:
    """Return what scippnexus cannot read of a part of a file."""
    if isinstance(one, h5py.Dataset):
        if one.dtype.kind == "c":
            yield "complex numbers"
        if "units" in one.attrs and one.attrs["units"] not in UDUNITS:
            yield f"unit {one.attrs['units']}"
    elif one.attrs["NX_class"] == "NXlog" and any(isinstance(part, h5py.Group) for part in one.values()):
        yield "a log with a group"


def follow(data: Any) -> Any:
    """Return the NXdata that a viewer draws when it opens a group."""
    while data.attrs["NX_class"] != "NXdata":
        data = data[data.attrs["default"]]
    return data


def heaps_at(*seconds: float, at: int = START) -> list[bytes | None]:
    return encoded(*(heap(3, seq, latency=seq / 8, time=at + round(one * 1e6)) for seq, one in enumerate(seconds)))


# Notifications


def test_notifications_are_events_with_their_fields_as_columns(tmp_path: Path) -> None:
    log = MemoryLog({"ingest.heaps": 1})
    for value in heaps_at(0.0, 0.25, 0.5):
        put(log, "ingest.heaps", START, value)
    many = summed(columnar([heap(5, seq, time=START + 3 * SECOND + seq) for seq in range(4)]))
    log.append(replace(many, partition=0, timestamp_us=START + 3 * SECOND))
    put(log, "ingest.heaps", START, None)
    put(log, "ingest.heaps", START, b"{}")
    with written(tmp_path, log, "ingest.heaps") as file:
        events = file["entry/ingest_heaps/notifications"]
        assert events.attrs["NX_class"] == "NXevent_data"
        assert events["event_id"][:].tolist() == [3] * 3 + [5] * 4
        index, zero = events["event_index"][:], events["event_time_zero"]
        assert (index.tolist(), events["event_index"].dtype) == ([0, 3], np.int64)
        assert (units(zero), zero.attrs["offset"]) == ("us", file["entry/start_time"].asstr()[()])
        pulses = np.repeat(zero[:], np.diff([*index, 7]))
        times = pulses + events["event_time_offset"][:]
        assert times.tolist() == [0, 250_000, 500_000, *(3 * SECOND + seq for seq in range(4))]
        assert events["latency"][:3].tolist() == [0.0, 0.125, 0.25]
        assert events["received"][:].tolist() == [512] * 7
        assert (units(events["latency"]), units(events["received"])) == ("s", "count")
        account = file["entry/account"]
        assert (texts(account["topic"]), account["records"][:].tolist()) == (["ingest.heaps"], [6])
        assert account["not_decoded"][:].tolist() == [1]
        assert "version" in texts(account["first_reason"])[0]


# Windows


def partial(window: int, count: int, late: bool = False, **fields: FieldStatistics) -> Partial:
    return Partial(7, window, late, count, window, window + 1, [], fields)


def watermark(read_to: int, stream: str = "ingest.heaps", partition: int = 0, partitions: int = 1) -> Watermark:
    return Watermark(worker="w", stream=stream, partition=partition, partitions=partitions, log="l", read_to=read_to)


def summary(node: int, *partials: Partial) -> IngestSummary:
    return IngestSummary(worker="w", partition=0, node=node, partials=list(partials))


def rack(
    windows: Sequence[int], nodes: Sequence[int], stream: str = "ingest.heaps", **fields: FieldColumns
) -> RackSummary:
    size = len(nodes)
    return RackSummary(
        worker="w", stream=stream, partition=0, first=0, last=49, log="l", offset_from=0, offset_to=1, part=0,
        node=[*nodes], epoch=[7] * size, window=[*windows], late=[False] * size, count=[2] * size,
        time_min=[1] * size, time_max=[2] * size, runs=[[]] * size, fields=fields,
    )  # fmt: skip


def test_partials_of_a_window_become_one_with_its_quality(tmp_path: Path) -> None:
    log, topic = MemoryLog({"ingest.summary": 1}), "ingest.summary"
    put(log, topic, START + 1000, summary(1, partial(START, 2, latency=FieldStatistics(sum=0.5, max=0.4))))
    put(log, topic, START + 2000, summary(1, partial(START, 2, latency=FieldStatistics(sum=1.5, max=0.3))))
    put(log, topic, START + 2000, summary(1, partial(START, 9, late=True, latency=FieldStatistics(sum=1.5, max=9))))
    columns = FieldColumns(sum=[10, 30], last=[4, 6])
    put(log, topic, START + 2000, rack([START, START + 2 * SECOND], [3, 3], received=columns))
    put(log, topic, START + 3000, watermark(START + SECOND + 100_000))
    put(log, topic, START + 2 * HOUR, summary(1, partial(START + 2 * HOUR, 1)))
    put(log, topic, START - SECOND, b"{}")  # read, but not of this time
    put(log, topic, START + 3000, rack([START, START], [3], received=columns))
    put(log, topic, START + 3000, rack([START], [10_000], received=FieldColumns(sum=[1])))
    put(log, topic, START + 3000, summary(1, partial(START, 1, latency=FieldStatistics(max=10**400))))
    with written(tmp_path, log, topic, end=START + 4 * SECOND) as file:
        windows = file["entry/ingest_heaps/windows"]
        count, mean = windows["count"], windows["latency_mean"]
        assert windows["count"].attrs["NX_class"] == "NXlog"
        assert count["time"][:].tolist() == [0.0, 1.0, 2.0, 3.0]
        assert (units(count["time"]), count["time"].attrs["start"]) == ("s", file["entry/start_time"].asstr()[()])
        assert count["value"][:].tolist() == [[0, 4, 0, 2], [0] * 4, [0, 0, 0, 2], [0] * 4]
        assert count["node"][:].tolist() == [0, 1, 2, 3]
        assert (mean["value"][0, 1], units(mean["value"])) == (0.5, "s")
        assert windows["latency_max/value"][0, 1] == 0.4
        assert np.isnan(windows["latency_max/value"][0, 3])
        assert (windows["received_sum/value"][2, 3], units(windows["received_sum/value"])) == (30, "count")
        assert windows["received_last/value"][:, 3].tolist()[::2] == [4, 6]
        labels = count["quality"].attrs["labels"].tolist()
        qualities = [[labels[one] for one in row] for row in count["quality"][:]]
        assert qualities[0] == ["INVALID", "VALID", "INVALID", "VALID"]
        assert (qualities[1], qualities[2][3]) == (["INVALID"] * 4, "CHANGING")
        data = follow(file)
        assert data.name == "/entry/ingest_heaps/windows/plot"
        assert data.attrs["signal"] == "count"
        assert data.attrs["axes"].tolist() == ["time", "node"]
        drawn = Figure().subplots().pcolormesh(data["time"][:], data["node"][:], data[data.attrs["signal"]][:].T)
        assert drawn.get_array().shape == (4, 4)
        assert data["latency_mean"] == mean["value"]
        assert file["entry/account/not_decoded"][:].tolist() == [3]
    assert judge(tmp_path / "night.nxs") == []


def test_the_code_of_the_page_reads_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log, topic = MemoryLog({"ingest.summary": 1}), "ingest.summary"
    put(log, topic, START + 1000, summary(7, partial(START, 2, latency=FieldStatistics(sum=0.5, max=0.4))))
    written(tmp_path, log, topic, end=START + SECOND).close()
    text = resource("docs", "how-to", "archive.md").read_text()
    (code,) = (
        block for block in re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE) if "h5py" in block
    )
    monkeypatch.chdir(tmp_path)
    exec(code)
    assert capsys.readouterr().out == "s [0.] [0.4]\n"


def test_windows_of_other_streams_share_a_topic(tmp_path: Path) -> None:
    log, topic = MemoryLog({"telemetry.summary": 1}), "telemetry.summary"
    about = {"worker": "w", "stream": "flagging", "partition": 0}
    for group, flagged in (("2", 5), ("1", 7), ("99", 1), ("x", 1)):
        fields = {"flagged": FieldStatistics(sum=flagged), "a/b": FieldStatistics(sum=1)}
        found = TelemetrySummary(**about, group=group, partials=[partial(START, 1, **fields)])
        put(log, topic, START + 1000, found)
    unknown = TelemetrySummary(**about | {"stream": "x"}, group="1", partials=[])
    put(log, topic, START + 1000, unknown)
    put(log, topic, START + 1000, rack([START], [3], "ingest.buffers", fill=FieldColumns(sum=[0.5], max=[0.4])))
    put(log, topic, START + 40 * SECOND, watermark(START + 11 * SECOND, "flagging", partition=1, partitions=2))
    with written(tmp_path, log, topic, end=START + 30 * SECOND) as file:
        windows = file["entry/flagging/windows"]
        assert set(windows) == {"count", "newest", "flagged_sum", "plot"}
        assert windows["flagged_sum/value"][:].tolist()[0][1:] == [7, 5]
        assert windows["flagged_sum/subarray"][:].tolist() == [0, 1, 2]
        assert windows["count/quality"][0].tolist() == [1, 3, 3]  # nothing is known of the other partition
        assert file["entry/ingest_buffers/windows/fill_mean/value"][0, 3] == 0.25
        assert file["entry/account/not_decoded"][:].tolist() == [3]


def test_windows_agree_with_the_notifications_that_a_worker_summed_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if they are written in several parts."""
    monkeypatch.setattr(nexus_groups, "_PAGE", 2)
    clock = ManualClock(BASE_US / 1e6)
    broker = MemoryBroker(clock, {name: topic.partitions for name, topic in ICD.topics.items()})
    log = MemoryTransactionalLog(broker, "ingest.heaps", group="aggregate")
    worker = telemetry_worker(log, ICD, Settings(nodes=4), slot="0", clock=clock)
    for tick in range(400):  # 4 s; nothing is sent in the last one
        if tick < 300 and tick % 7 == 0:
            node = tick % 4
            (value,) = encoded(heap(node, tick, at=tick / 100, latency=tick / 1000))
            broker.append(Record(topic="ingest.heaps", key=b"%d" % node, value=value, partition=node % 2))
        worker.step()
        clock.sleep(0.01)
    topics = "ingest.heaps", "ingest.summary"
    copied = MemoryLog(dict.fromkeys(topics, 4))
    for topic in topics:
        for record in broker.read(topic):
            copied.append(record)
    with written(tmp_path, copied, *topics, begin=BASE_US, end=BASE_US + 3 * SECOND) as file:
        events, windows = file["entry/ingest_heaps/notifications"], file["entry/ingest_heaps/windows"]
        pulses = np.repeat(events["event_time_zero"][:], np.diff([*events["event_index"], len(events["event_id"])]))
        seconds, nodes = (pulses + events["event_time_offset"][:]) // SECOND, events["event_id"][:]
        for second, node in np.ndindex(3, 4):
            mine = (seconds == second) & (nodes == node)
            assert windows["count/value"][second, node] == np.count_nonzero(mine) > 0
            assert windows["received_sum/value"][second, node] == events["received"][mine].sum()
            assert windows["latency_max/value"][second, node] == events["latency"][mine].max()
        assert (windows["count/quality"][:] == QUALITIES.index("VALID")).all()


# States, mirrored attributes, messages


def state(at_us: int, attribute: str, value: str, device: str = SUBARRAY) -> State:
    return State(device=device, attribute=attribute, value=value, time=at_us, origin="c")


def mirrored(
    at_us: int, name: str, value: Any, kind: str = "DevDouble", quality: Any = "VALID", **more: Any
) -> TelescopeAttribute:
    said = {"connection": "CONNECTED", "by": "EVENT", **more}
    return TelescopeAttribute(name=name, number=1, time=at_us, value=value, type=kind, quality=quality, **said)


def test_states_are_logs_of_labels_and_numbers(tmp_path: Path) -> None:
    log = MemoryLog({"state": 1})
    put(log, "state", START, state(START, "obsState", "READY"))
    put(log, "state", START + SECOND, state(START + SECOND, "obsState", "SCANNING"))
    put(log, "state", START, state(START, "scanID", "17"))
    put(log, "state", START, state(START, "scanID", "none"))
    put(log, "state", START, state(START, "State", "ON\x00ü"))
    put(log, "state", START, state(START, "State", "ON", "mid-sdp/subarray_01"))
    with written(tmp_path, log, "state") as file:
        states = file["entry/state"]
        observing = states["mid_sdp_subarray_01_obsState"]
        assert observing["description"].asstr()[()] == f"{SUBARRAY}/obsState"
        labels = texts(observing["labels"])
        assert [labels[one] for one in observing["value"]] == texts(observing["text"]) == ["READY", "SCANNING"]
        assert labels == list(ICD.enums["ObsState"])
        assert observing["time"][:].tolist() == [0.0, 1.0]
        assert observing["quality"][:].tolist() == [0, 0]
        scans = states["mid_sdp_subarray_01_scanID"]
        assert scans["value"][:].tolist()[0] == 17
        assert np.isnan(scans["value"][1])
        assert texts(scans["text"]) == ["17", "none"]
        assert texts(states["mid_sdp_subarray_01_State/text"]) == ["ON\\u0000ü"]
        assert texts(states["mid_sdp_subarray_01_State_2/text"]) == ["ON"]
        assert follow(states["plots/mid_sdp_subarray_01_obsState"])["value"] == observing["value"]
    assert judge(tmp_path / "night.nxs") == []


def test_mirrored_attributes_keep_shape_and_quality(tmp_path: Path) -> None:
    log = MemoryLog({"telescope.model": 1})
    for second, value, quality in ((0, 1.5, "VALID"), (1, "NaN", "ALARM"), (2, None, "INVALID"), (3, [1.0], "VALID")):
        at = START + second * SECOND
        put(log, "telescope.model", at, mirrored(at, "a/b/c/number", value, quality=quality))
    for value in ([181.0, 45.0], [182.0, 46.0], [1.0]):
        put(log, "telescope.model", START, mirrored(START, "a/b/c/pointing", value))
    put(log, "telescope.model", START, mirrored(START, "a/b/c/band", ["1", "2"], "DevString"))
    put(log, "telescope.model", START, mirrored(START, "a/b/c/huge", [10**400, 1]))
    put(log, "telescope.model", START, mirrored(START, "a/b/c/on", True, "DevBoolean", connection="DISCONNECTED"))
    with written(tmp_path, log, "telescope.model") as file:
        model = file["entry/telescope_model"]
        number = model["a_b_c_number"]
        labels = number["quality"].attrs["labels"].tolist()
        assert [labels[one] for one in number["quality"]] == ["VALID", "ALARM", "INVALID", "VALID"]
        assert number["value"][0] == 1.5
        assert np.isnan(number["value"][1:]).all()
        assert texts(number["text"]) == ["", "", "", "[1.0]"]
        assert model["a_b_c_pointing/value"].shape == (3, 2)
        assert follow(model["plots/a_b_c_pointing"]).attrs["axes"].tolist() == ["time", "index_1"]
        assert model["a_b_c_pointing/value"][1].tolist() == [182.0, 46.0]
        assert texts(model["a_b_c_pointing/text"])[2] == "[1.0]"
        assert texts(model["a_b_c_band/text"]) == ['["1","2"]']
        assert (model["a_b_c_on/value"][0], model["a_b_c_on/connection"][0]) == (1.0, 1)
    assert judge(tmp_path / "night.nxs") == []


ALERT = Alert(
    condition="streamSilent", source="ingest/0007", severity="ALARM", state="ACTIVE", text="nothing\tcame",
    raised_at=START + 5, sequence=2, values={"rate": 0.5},
)  # fmt: skip


def test_alerts_and_commands_are_logs_with_a_column_for_each_field(tmp_path: Path) -> None:
    log = MemoryLog({"alerts": 1, "commands": 1, "command-acks": 1})
    put(log, "alerts", START, ALERT)
    put(
        log, "alerts", START,
        AlertAction(
            id="i", action="COMMENT", condition="c", source="s", operator="o", comment="c", time=START, origin="x"
        ),
    )  # fmt: skip
    put(log, "alerts", START, b"\xff")
    argument = {"eb_id": EB}
    put(log, "commands", START, command("1", "Scan", argument))
    put(log, "commands", START + SECOND, command("2", "EndScan", None))
    ack = CommandAck(id="1", device=SUBARRAY, command="Scan", status="COMPLETED", time=START + SECOND, origin="c")
    put(log, "command-acks", START + SECOND, ack)
    with written(tmp_path, log, "alerts", "commands", "command-acks") as file:
        alert = file["entry/alerts/alert"]
        assert [texts(alert["labels"])[one] for one in alert["value"]] == texts(alert["severity"]) == ["ALARM"]
        assert (texts(alert["text"]), json.loads(texts(alert["values"])[0])) == (["nothing\tcame"], {"rate": 0.5})
        assert (alert["time"][0], alert["sequence"][0]) == (5e-6, 2)
        assert texts(file["entry/alerts/alert_action/action"]) == ["COMMENT"]
        commands = file["entry/commands/command"]
        assert [texts(commands["labels"])[one] for one in commands["value"]] == ["Scan", "EndScan"]
        assert [json.loads(one) for one in texts(commands["argument"]) if one] == [argument]
        assert (commands["deadline"][0], units(commands["deadline"])) == (START + 5, "us")
        assert commands["deadline"].attrs["start"].startswith("1970-01-01T00:00:00")
        acks = file["entry/command_acks/command_ack"]
        assert [texts(acks["labels"])[one] for one in acks["value"]] == ["COMPLETED"]
        assert np.isnan(acks["progress"][0])
        found = dict(zip(texts(file["entry/account/topic"]), file["entry/account/not_decoded"][:], strict=True))
        assert found == {"alerts": 1, "command-acks": 0, "commands": 0}
    assert judge(tmp_path / "night.nxs") == []


def command(name: str, word: str, argument: dict[str, Any] | None) -> Command:
    return Command(
        id=name, device=SUBARRAY, command=word, argument=argument, transaction_id="t", issued=START,
        not_after=START + 5, deadline=START + 5, ceiling=START + 5, repeatable=False, origin="o",
    )  # fmt: skip


# Tables


def solution() -> Solution:
    shape = (2, 3, 2)
    gains = (np.arange(12).reshape(shape) + 1j).astype(np.complex64)
    return Solution(
        solution_id="cal-7", kind="gains", source_model="J1939-6342", valid_from=1, valid_until=2,
        antennas=("SKA001", "SKA036"), frequencies=np.array([1e9, 1.1e9, 1.2e9]), polarisations=("XX", "YY"),
        gains=gains, flags=np.zeros(shape, bool), snr=np.full((2, 3), 50.0, np.float32),
    )  # fmt: skip


def npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def test_tables_are_plottable_with_their_units(tmp_path: Path) -> None:
    log = MemoryLog({"calibration": 1})
    made, image = solution(), np.arange(6.0).reshape(2, 3)
    arrow = {"content_type": "application/vnd.apache.arrow.stream"}
    sent = [
        *cut("cal-7", encode_solution(made), 1000, **arrow),
        *cut("image", npy(image), 50, content_type="application/x-npy", kind="sky-model"),
        *cut("opaque", b"SIMPLE  =", 4) * 2,
        *reversed(cut("turned", b"0123456789", 4)),
        *cut("torn", b"0123456789", 4)[:2],
        *cut("wrong", b"0123456789", 4, sha256="0" * 64),
        *cut("broken", b"no arrow at all", 4, **arrow),
        *cut("empty", b"", 4),
        *cut("far", b"0", start=2**40 - 1, size=2**40),
    ]
    for record in sent:
        log.append(replace(record, partition=0, timestamp_us=START))
    with written(tmp_path, log, "calibration") as file:
        tables = file["entry/calibration"]
        assert set(tables) == {"cal_7", "image", "opaque", "turned", "empty"}, "each table is there once"
        gains = tables["cal_7"]
        assert (gains["gain_real"][:] + 1j * gains["gain_imag"][:] == made.gains).all()
        assert gains.attrs["signal"] == "gain_amplitude"
        assert gains.attrs["axes"].tolist() == ["row", "frequencies", "polarisation"]
        assert gains["gain_amplitude"][:] == pytest.approx(np.abs(made.gains))
        assert units(gains["gain_phase"]) == "rad"
        assert (gains["frequencies"][:].tolist(), units(gains["frequencies"])) == ([1e9, 1.1e9, 1.2e9], "Hz")
        assert (texts(gains["antenna"]), texts(gains["polarisations"])) == (["SKA001", "SKA036"], ["XX", "YY"])
        assert gains.attrs["source_model"] == "J1939-6342"
        assert tables["image"][tables["image"].attrs["signal"]][:].tolist() == image.tolist()
        assert tables["opaque"].attrs["NX_class"] == "NXnote"
        assert tables["opaque/data"][:].tobytes() == b"SIMPLE  ="
        assert tables["turned/data"][:].tobytes() == b"0123456789", "segments may come in any order"
        assert tables["opaque/type"].asstr()[()] == "application/octet-stream"
        assert file["entry/account/not_decoded"][:].tolist() == [4]
    assert judge(tmp_path / "night.nxs") == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["archive", "night.nxs"]


def test_each_unit_of_the_interface_is_one_of_udunits() -> None:
    assert {udunits(unit) for unit in UNITS} == UDUNITS


@pytest.mark.filterwarnings("ignore:Failed to load .* Falling back to loading HDF5 group children")
def test_a_reader_of_nexus_files_loads_all(tmp_path: Path) -> None:
    scippnexus = pytest.importorskip("scippnexus")
    log = MemoryLog({"ingest.heaps": 1, "state": 1, "calibration": 1})
    put(log, "ingest.heaps", START, heaps_at(0.0)[0])
    put(log, "state", START, state(START, "obsState", "READY"))
    arrow = {"content_type": "application/vnd.apache.arrow.stream"}
    for one in cut("cal-7", encode_solution(solution()), 1000, **arrow):
        log.append(replace(one, partition=0, timestamp_us=START))
    written(tmp_path, log, "ingest.heaps", "state", "calibration").close()
    with scippnexus.File(tmp_path / "night.nxs") as file:
        entry = file["entry"][()]
    assert entry["ingest_heaps"]["notifications"].sizes == {"event_time_zero": 1}
    assert entry["state"]["mid_sdp_subarray_01_obsState"]["value"].shape == (1,)
    assert entry["calibration"]["cal_7"]["gain_real"].shape == (2, 3, 2)


# The command


def command_line(store: Path, file: Path, *more: str) -> Any:
    return CliRunner().invoke(app, ["archive", "export", str(store), "--nexus", str(file), *more])


TIMES = ("--from", "2027-01-15T08:00", "--to", "2027-01-15T09:00Z")
"""The hour that begins at `START`."""


def alerts(tmp_path: Path, count: int = 1) -> Path:
    log = MemoryLog({"alerts": 1, "positions": 1})
    for number in range(count):
        put(log, "alerts", START + number * 1000, ALERT)
    put(log, "alerts", START, b"{}")
    put(log, "positions", START, b"{}")
    archive_of(tmp_path, log, "alerts", "positions")
    return tmp_path / "archive"


def test_the_command_says_what_is_in_the_file_and_what_could_not_be_decoded(tmp_path: Path) -> None:
    file = tmp_path / "night.nxs"
    done = command_line(alerts(tmp_path), file, *TIMES)
    assert done.exit_code == 0, done.output
    lines = [line.split() for line in done.output.splitlines()]
    assert ["alerts", "2", "1"] in [line[:3] for line in lines]
    assert ["positions", "not", "exported", "0"] in lines
    with h5py.File(file) as made:
        assert made["entry/start_time"].asstr()[()] == "2027-01-15T08:00:00.000000+00:00"
        assert made["entry/account/exported"][:].tolist() == [1, 0]


def test_records_that_are_missing_are_told(tmp_path: Path) -> None:
    folder, log, file = tmp_path / "archive", MemoryLog({"alerts": 1}), tmp_path / "night.nxs"
    for number in range(3):
        put(log, "alerts", START + number * SECOND, ALERT)
        archive_of(tmp_path, log, "alerts")
    (gone,) = folder.rglob("*-00000001.parquet")
    gone.unlink()
    done = command_line(folder, file, *TIMES)
    said = " ".join(done.stderr.split())
    assert "00000002.parquet: expected number 1, got 2: a file is missing" in said
    assert f"`sdp-facade archive verify {folder}` names" in said
    with h5py.File(file) as made:
        assert "offsets 1 to 1 were not taken" in texts(made["entry/account/missing"])[0]


def test_what_a_killed_export_left_is_removed_and_two_at_once_are_refused(tmp_path: Path) -> None:
    store, file = alerts(tmp_path), tmp_path / "night.nxs"
    left = tmp_path / ".night.nxs.part"
    left.mkdir()
    (left / "part.nxs").write_bytes(b"half")
    (left / "tmp0").write_bytes(b"segment")
    lock = os.open(left, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert "expected one export to this file at a time" in str(command_line(store, file, *TIMES).exception)
    assert (left / "part.nxs").read_bytes() == b"half"
    os.close(lock)  # as a kill does
    assert command_line(store, file, *TIMES).exit_code == 0
    assert sorted(tmp_path.iterdir()) == [store, file]


def test_a_file_is_replaced_only_by_force(tmp_path: Path) -> None:
    store, file = alerts(tmp_path), tmp_path / "night.nxs"
    file.write_text("mine")
    done = command_line(store, file, *TIMES)
    assert "--force" in str(done.exception)
    assert file.read_text() == "mine"
    assert command_line(store, file, *TIMES, "--force").exit_code == 0
    assert h5py.is_hdf5(file)


@pytest.mark.parametrize(
    ("more", "what"),
    [
        (("--from", "2027-01-15T08:00"), "expected --from and --to, or --eb"),
        ((*TIMES, "--eb", EB), "expected --from and --to, or --eb"),
        ((), "expected --from and --to, or --eb"),
        (("--eb", EB), "which no record names"),
        (("--from", "yesterday", "--to", "2027-01-15T09:00"), "--from: expected a time such as"),
        (("--from", "2027-01-15T09", "--to", "2027-01-15T08"), "expected a begin before the end"),
        (("--from", "2026-01-15T08", "--to", "2026-01-15T09"), "from 2027-01-15T08:00:00.000+00:00 to 2027-01-15T09:0"),
        (("--from", "2027-01-15T08:30", "--to", "2027-01-15T08:31"), "has records, from 2027-01-15T08:00:00"),
    ],
)
def test_what_cannot_be_exported_is_said_and_leaves_nothing(tmp_path: Path, more: tuple[str, ...], what: str) -> None:
    store = alerts(tmp_path)
    done = command_line(store, tmp_path / "night.nxs", *more)
    assert isinstance(done.exception, ConfigError)
    assert what in str(done.exception)
    assert [*tmp_path.iterdir()] == [store]


@pytest.mark.parametrize("looks", [0, 1])
def test_a_disk_that_fills_ends_the_export_before_hdf5_meets_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    store, free = alerts(tmp_path), iter([10**12] * looks + [10**7] * 9)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=next(free)))
    monkeypatch.setattr(nexus, "_AT_ONCE", 1)
    done = command_line(store, tmp_path / "night.nxs", *TIMES)
    assert "night.nxs: cannot be written: No space left on device" in str(done.exception)
    assert [*tmp_path.iterdir()] == [store]


def test_an_export_that_ends_early_leaves_no_file(tmp_path: Path) -> None:
    store, file = alerts(tmp_path, 100), tmp_path / "night.nxs"
    log = MemoryLog({"commands": 1})
    put(log, "commands", START, command("1", "Scan", None))
    archive_of(tmp_path, log, "commands")
    (damaged,) = store.glob("topic=commands/*/*.parquet")
    damaged.write_bytes(damaged.read_bytes()[:-20])
    file.write_text("mine")
    with pytest.raises(ArchiveError, match=damaged.name):
        export(FolderStore(store), ICD, file, START, START + HOUR, replace=True)
    assert file.read_text() == "mine"
    assert sorted(tmp_path.iterdir()) == [store, file]


def test_the_time_of_an_execution_block_is_from_its_command_until_its_subarray_left_it(tmp_path: Path) -> None:
    log = MemoryLog({"commands": 1, "state": 1, "processing-blocks": 1})
    argument = {"execution_block": {"eb_id": EB}}
    put(log, "commands", START - SECOND, command("0", "AssignResources", {"execution_block": {"eb_id": "eb-other"}}))
    put(log, "commands", START + SECOND, command("1", "AssignResources", argument))
    put(log, "state", START + 2 * SECOND, state(START, "ebID", EB))
    put(log, "state", START + 3 * SECOND, state(START, "ebID", "eb-other", "mid-sdp/subarray/02"))
    put(log, "state", START + 4 * SECOND, state(START, "obsState", "IDLE"))
    put(log, "state", START + 5 * SECOND, state(START, "ebID", "null"))
    put(log, "state", START + 6 * SECOND, state(START, "ebID", "eb-other"))
    put(log, "state", START + 7 * SECOND, state(START, "ebID", f"{EB}0"))
    put(log, "commands", START + 8 * SECOND, command("2", "AssignResources", {"execution_block": {"eb_id": f"{EB}0"}}))
    store = archive_of(tmp_path, log, "commands", "state", "processing-blocks")
    assert find_time(store, EB) == (START + SECOND, START + 5 * SECOND + 1000)
    file = tmp_path / "night.nxs"
    assert command_line(tmp_path / "archive", file, "--eb", EB).exit_code == 0
    with h5py.File(file) as made:
        assert made["entry/entry_identifier"].asstr()[()] == EB
        assert made["entry/commands/command/time"].shape == (1,)
