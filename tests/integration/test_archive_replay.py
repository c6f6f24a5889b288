"""Devices show a night that is played again through real processes; that the same comes of it, a demo judges."""

from pathlib import Path

import pytest
import tango

from facade.archive.reading import extent
from facade.archive.stores import FolderStore
from facade.kernel.clock import utc_seconds, utc_text
from facade.sdp.replay import replay_topics
from tests.conftest import Deploy
from tests.support.archives import kept
from tests.support.deployment import BUS, ICD, MASTER, Deployment, node_device
from tests.support.processes import Running
from tests.support.waiting import until

pytestmark = pytest.mark.kafka

NO_TANGO, ARCHIVE = "127.0.0.1:1", "mid-sdp/archive/0"


def archived(deployment: Deployment, folder: Path, topic: str) -> FolderStore:
    worker = deployment.launch("archive", "archive", "run", folder, "--every", "0.2s", "--only", topic)
    there, store = len(deployment.messages(topic)), FolderStore(folder)
    until(lambda: len(kept(store)) == there, "all records are in files", every=0.2)
    assert worker.terminate() == 0
    return store


def test_devices_show_a_replay_by_its_time_and_refuse_commands(deploy: Deploy, tmp_path: Path) -> None:
    night = tmp_path / "night"
    original = deploy(prepare=False, tango_host=NO_TANGO)
    original.create_topics()
    original.simulate("--count", 8000, "--rate", 2000).finish()
    begin_us, end_us = extent(archived(original, night, "ingest.heaps")) or (0, 0)

    again = deploy(prepare=False, archives=1)
    again.enter_devices()
    words = ["--from", utc_text(begin_us), "--to", utc_text(end_us), "--speed", 0.05]
    replays: list[Running] = []

    def tells() -> bool:
        # A command whose broker does not answer for some seconds gives up, beside much other work as well.
        if not (replays and replays[-1].running):
            replays.append(again.launch("replay", "archive", "replay", night, *words))
        return bool(again.messages("replay"))

    again.create_topics(replay_topics(ICD))
    until(tells, "the replay has told its position")
    replay = replays[-1]
    again.command("archive", "replay-control", "pause")
    shows = {"SDP_REPLAY": "1"}
    again.worker(**shows)
    for instance in ("control", "ingest-00", "archive"):
        again.server(instance, **shows)

    def status(device: str = MASTER) -> str:
        return str(again.proxy(device).status()).splitlines()[0]

    def paused(device: str) -> bool:
        return status(device).startswith("REPLAY ") and status(device).endswith(" UTC at 0.05x, paused")

    devices = (MASTER, BUS, ARCHIVE, node_device(0))
    for device in devices:
        until(lambda device=device: paused(device), f"{device} shows that the replay is paused")
    with pytest.raises(tango.DevFailed, match=r"this deployment shows a replay.*never executed"):
        again.proxy(MASTER).Off()
    with pytest.raises(tango.DevFailed, match="A replay does not go back"):
        again.proxy(ARCHIVE).Seek(utc_text(begin_us - 1_000_000))

    times = [one.timestamp()[1] * 1000 for one in original.messages("ingest.heaps")]
    first, at = min(times), max(times) - 500_000
    again.proxy(ARCHIVE).Seek(utc_text(at))
    until(lambda: status().startswith(f"REPLAY {utc_seconds(at)}"), "the replay has reached the time")
    node = again.proxy(node_device(0))
    until(lambda: again.quality(node_device(0), "heapRate") == "VALID", "a window of the night is shown")
    shown = node.read_attribute("heapRate").time.totime() * 1e6
    assert first - 1_000_000 <= shown <= at, "with the time of the night"

    again.command("archive", "replay-control", "seek", utc_text(max(times)))
    assert replay.exit_code() == 0, replay.tail()
    for device in devices:
        until(lambda device=device: status(device).endswith(", ended"), f"{device} shows that the replay has ended")
    assert again.messages("commands") == []
    assert len(again.messages("ingest.heaps")) == 8000
