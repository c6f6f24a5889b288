"""Records of the released interface and of a later one, on each topic: every reader uses them as those of today."""

import json
import tarfile
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from facade.flows.commands.messages import order_id
from facade.kernel.bus.port import Record
from sdp_facade_lab.fault_runs.fuzz_records import documents, example, record
from tests.support.hostile_walk import READERS, Walk
from tests.support.whole import ICD, Site

Document = dict[str, Any]

pytestmark = pytest.mark.needs("facade.archive", "facade.sdk", "facade.tools", "sdp_facade_lab")

PACKAGING = Path(__file__).parents[2] / "packaging"
SUBARRAY = "mid-sdp/subarray/01"
CHANGED: Mapping[str, Document] = {
    "orders": {"parent": "1-00000001_Configure", "id": order_id("1-00000001_Configure", SUBARRAY, "Scan", 1)},
    "settings": {"attribute": "adminMode", "value": "ONLINE"},
    "tables": {"kind": "other", "summary": {}},
    "telemetry.summary": {"stream": "ingest.buffers", "group": "1"},
    "rack-summary": {"last": 49},
}
"""What a topic or a device demands beyond the schema of a message."""


@cache
def released() -> Mapping[str, Any]:
    """Return the schemas of the newest release by message."""
    (path,) = PACKAGING.glob("interface-*.tar.gz")
    with tarfile.open(path) as archive:
        files = {name: archive.extractfile(name) for name in archive.getnames() if name.endswith(".schema.json")}
        return {
            Path(name).name.removesuffix(".schema.json"): json.load(file)
            for name, file in files.items()
            if file is not None and Path(name).parent.name == "messages"
        }


def as_of_today(document: Document, message: str) -> Document:
    return document


def as_released(document: Document, message: str) -> Document:
    """Return a document without what the released schema does not have."""

    def known(value: Any, schema: Mapping[str, Any]) -> Any:
        if isinstance(value, list):
            return [known(one, schema.get("items", {})) for one in value]
        if not isinstance(value, dict) or "properties" not in schema:
            return value
        return {
            name: known(one, part)
            for name, part in schema["properties"].items()
            if (one := value.get(name)) is not None
        }

    return known(document, released()[message]) if message in released() else document


def as_later(document: Document, message: str) -> Document:
    """Return a document with a further field in each of its parts."""

    def more(value: Any, schema: Mapping[str, Any]) -> Any:
        if isinstance(value, list):
            return [more(one, schema.get("items", {})) for one in value]
        if not isinstance(value, dict):
            return value
        parts, rest = schema.get("properties"), schema.get("additionalProperties") or {}
        found = {name: more(one, rest if parts is None else parts[name]) for name, one in value.items()}
        return found if parts is None else {"further": {"a": [1.5, None]}, **found, "added": "later"}

    return more(document, ICD.messages[message])


FORMS = {"released": as_released, "later": as_later}


def sent(now_us: int, form: Callable[[Document, str], Document]) -> Iterator[Record]:
    """Return a good record of each message of each topic that has a schema."""
    known = documents(now_us, 1)
    for name, topic in ICD.topics.items():
        messages = [topic.message, *topic.also] if topic.header is None else [topic.header.message]
        for message in filter(None, messages):
            schema = ICD.messages[message]
            whole = {"schema": f"{message}/1", **next(iter(schema.get("examples", ())), {}), **known.get(message, {})}
            whole |= {one: example(schema["properties"][one]) for one in schema["required"] if one not in whole}
            changed = CHANGED.get(name, {}) | CHANGED.get(message, {})
            whole |= {one: value for one, value in changed.items() if one in schema["properties"]}
            good = record(name, message, form(whole, message))
            of_rack = name == "telemetry.summary" and message == "rack-summary"
            key = b"ingest.buffers/" + good.key if of_rack else good.key
            yield Record(topic=name, key=key or b"1", value=good.value, headers=good.headers)


def outcomes(folder: Path, form: Callable[[Document, str], Document]) -> tuple[Walk, dict[str, tuple[int, ...]]]:
    """Let everything read the records of one form, and return what became of them."""
    walk = Walk(Site(), folder)
    for one in sent(walk.now_us, form):
        walk.site.send(one)
    walk.settle()
    streams = walk.site.streams().items()
    figures = {
        name: (one.account.used, one.account.late, one.account.suppressed, one.account.dead_lettered)
        for name, one in streams
    }
    return walk, figures


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_each_reader_uses_them_as_those_of_today(form, tmp_path):
    today = outcomes(tmp_path / "today", as_of_today)
    walk, figures = outcomes(tmp_path / "other", form)
    assert [dict(one.headers) for one in walk.site.read("dead-letters")] == []
    assert figures == today[1]
    for reader in READERS:
        reader(walk)
