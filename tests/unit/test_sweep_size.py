"""The size of a topic is read from the broker's folder, in which the broker removes other topics meanwhile."""

import os
from pathlib import Path
from typing import Any

import pytest

from proving.bench.sweep import bytes_on_disk


def test_other_topics_that_vanish_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "kafka" / "data"
    for name, size in {"x.split-0": 3, "x.split-1": 4, "x.metrics-2.4c99-delete": 5}.items():
        (data / name).mkdir(parents=True)
        (data / name / "0.log").write_bytes(bytes(size))
        (data / name / "0.index").write_bytes(bytes(100))
    scandir = os.scandir

    def gone(path: Any) -> Any:
        if str(path).endswith("-delete"):
            raise FileNotFoundError(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", gone)
    assert bytes_on_disk(tmp_path, "x.split") == 7
