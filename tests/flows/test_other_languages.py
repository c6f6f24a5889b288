"""Batches that other languages write are read by the workers as ours are."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from facade.kernel.icd.load import load
from facade.sdp.batches import BatchReader, Joined, ReadBatch

pytestmark = pytest.mark.needs("repository")

RUST = Path(__file__).parents[2] / "examples" / "rust-producer"


def read(folder: Path) -> Joined:
    reader = BatchReader(load().messages["heap"], ["seq", "time"])
    header = (folder / "header.json").read_bytes()
    batch = reader.read((folder / "value.arrow").read_bytes(), (("batch", header),))
    assert isinstance(batch, ReadBatch), batch
    return Joined(reader, [batch])


def check(folder: Path) -> None:
    joined = read(folder)
    assert joined.rejected == {}
    assert joined["seq"].tolist() == list(range(1_000_000, 1_000_100))
    assert joined["time"].tolist() == [1_795_276_800_000_000 + 31 * at for at in range(100)]
    assert set(joined["received"].tolist()) == {64}
    assert set(joined["flagged_fraction"].tolist()) == {0.25}
    assert (set(joined["scan_id"].tolist()), set(joined["node"].tolist())) == ({7}, {42})
    assert json.loads((folder / "header.json").read_text())["sequence"] == 0


def test_a_batch_that_rust_wrote() -> None:
    check(RUST / "batch")


@pytest.mark.skipif("SDP_TEST_RUST" not in os.environ, reason="a build takes minutes: set SDP_TEST_RUST=1 for it")
def test_a_batch_that_rust_writes_now(tmp_path: Path) -> None:
    env = {**os.environ, "CARGO_TARGET_DIR": str(tmp_path / "target")}
    subprocess.run(["cargo", "run", "--release", "--locked", "--", str(tmp_path)], cwd=RUST, env=env, check=True)
    check(tmp_path)
