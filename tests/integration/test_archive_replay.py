"""An archive is played again through real processes on a real broker, and the same windows come of it."""

from pathlib import Path

import msgspec
import pytest

from facade.clock import utc_text
from facade.flows.archive.reading import extent
from facade.flows.archive.stores import FolderStore
from facade.messages import StreamAccount
from tests.conftest import Deploy
from tests.support.archives import kept
from tests.support.deployment import Deployment
from tests.support.waiting import until

pytestmark = pytest.mark.kafka

NO_TANGO = "127.0.0.1:1"
TOPICS = ("ingest.heaps", "ingest.summary")


def aggregated(deployment: Deployment, records: int) -> None:
    """Let a worker take all records of the nodes, and end it."""

    def consumed() -> int:
        accounts = [msgspec.json.decode(one.value(), type=StreamAccount) for one in deployment.messages("accounts")]
        return sum(one.consumed for one in accounts if one.stream == "ingest.heaps")

    worker = deployment.worker()
    until(lambda: consumed() == records, "the worker has taken all records")
    assert worker.terminate() == 0


def heaps(deployment: Deployment) -> list[tuple[object, ...]]:
    found = [
        (one.partition(), one.offset(), one.timestamp()[1], one.key(), one.value(), one.headers())
        for one in deployment.messages("ingest.heaps")
    ]
    return sorted(found, key=lambda one: one[:2])


def archived(deployment: Deployment, folder: Path) -> FolderStore:
    words = [word for topic in TOPICS for word in ("--only", topic)]
    worker = deployment.launch("archive", "archive", "run", folder, "--every", "0.2s", *words)
    there, store = sum(len(deployment.messages(topic)) for topic in TOPICS), FolderStore(folder)
    until(lambda: len(kept(store)) == there, "all records are in files", every=0.2)
    assert worker.terminate() == 0
    return store


def test_a_night_is_played_again_and_the_same_comes_of_it(deploy: Deploy, tmp_path: Path) -> None:
    night, replay = tmp_path / "night", tmp_path / "replay"
    original = deploy(prepare=False, tango_host=NO_TANGO)
    original.create_topics()
    faults = [word for fault in ("garbage", "duplicates", "gaps", "late", "ahead") for word in (f"--{fault}", 0.01)]
    sent = original.simulate("--count", 4000, "--rate", 2000, *faults).finish()
    aggregated(original, sent.expected.consumed)
    store = archived(original, night)

    again = deploy(prepare=False, tango_host=NO_TANGO)
    begin, end = map(utc_text, extent(store) or ())
    times = ["--from", begin, "--to", end]
    said = again.command("archive", "replay", str(night), *times, "--speed", "max")
    assert f"{len(original.messages('ingest.heaps')):,} records of ingest.heaps" in said
    assert "sdp-facade aggregate" in said
    assert heaps(again) == heaps(original)
    aggregated(again, sent.expected.consumed)
    archived(again, replay)
    assert "digest of what is equal: " in again.command("archive", "compare", str(night), str(replay))
