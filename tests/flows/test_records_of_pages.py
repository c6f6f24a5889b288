"""The records that the Python code of the pages sends are those that the readers of the facade can use."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from facade.flows.quality.records import decode, read_header
from facade.flows.telemetry.worker import trials
from facade.kernel.bus.port import Record
from facade.kernel.config import Settings
from facade.kernel.icd.load import load
from facade.kernel.icd.units import unit_of
from facade.kernel.outcome import USED
from facade.sdp.messages import Metric

ICD = load()
HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"


@pytest.fixture
def sent(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[Record]:
    """Run the first block of the page that a test names; give the records that it sends."""
    records: list[Record] = []

    class Producer:
        def __init__(self, settings: dict[str, Any]) -> None:
            assert settings["partitioner"] == "murmur2_random"

        def produce(self, topic: str, value: Any, *, key: str | None, on_delivery: Any, headers: Any = None) -> None:
            found = tuple((name, text.encode()) for name, text in (headers or {}).items())
            content = value.encode() if isinstance(value, str) else value
            encoded = None if key is None else key.encode()
            now_us = time.time_ns() // 1000
            records.append(Record(topic=topic, key=encoded, value=content, headers=found, timestamp_us=now_us))
            on_delivery(None, None)

        def poll(self, timeout: float) -> None: ...

        def flush(self, timeout: float) -> None: ...

    monkeypatch.setattr("confluent_kafka.Producer", Producer)
    monkeypatch.setenv("KAFKA_BOOTSTRAP", "nowhere:9092")
    monkeypatch.setenv("SDP_TOPIC_PREFIX", "")
    program = re.search(r"^```python\n(.*?)^```$", (HOW_TO / request.param).read_text(), re.DOTALL | re.MULTILINE)
    assert program is not None
    exec(program.group(1), {})
    return records


@pytest.mark.parametrize("sent", ["send-quality.md"], indirect=True)
def test_metrics_have_the_key_header_and_array_that_are_read(sent: list[Record]) -> None:
    assert [record.topic for record in sent] == ["quality", "quality"]
    shown = {one.name: one for one in ICD.classes["SdpQuality"].attributes}
    values = {}
    for record in sent:
        header = read_header(record)
        assert isinstance(header, Metric), header
        assert header.unit == unit_of(ICD, shown[header.metric])
        values[header.metric] = decode(header.encoding, record.value or b"", header.shape, header.dtype).tolist()
    assert values == {"flaggedFraction": 0.125, "noiseAntenna": [1.5, 1.25, 1.75, 1.5]}


@pytest.mark.parametrize("sent", ["send-telemetry.md"], indirect=True)
def test_telemetry_is_counted_in_its_window(sent: list[Record]) -> None:
    read = trials(ICD, Settings())
    assert {record.topic: read[record.topic](record) for record in sent} == dict.fromkeys(
        ("ingest.buffers", "flagging", "storage"), USED
    )
    for record in sent:
        message = json.loads(record.value or b"")
        expected = {"ingest.buffers": "node", "flagging": "subarray"}.get(record.topic)
        assert record.key == (None if expected is None else str(message[expected]).encode())
