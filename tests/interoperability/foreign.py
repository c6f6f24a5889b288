"""Programs of others, each in an environment of its own (`scripts/bootstrap clients`); all they know is TANGO_HOST."""

import json
import os
import queue
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import HANG, until

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
TANGOGQL, DESK, JTANGO, CPP, DEBIAN, PROXIES = (
    ROOT / ".venv" / f"clients-{name}" for name in ("tangogql", "desk", "jtango", "cpp", "debian", "proxies")
)


def installed(path: Path) -> str:
    if not path.exists():
        pytest.fail(
            f"expected {path.relative_to(ROOT)}, which is not there; install the clients and try again: make clients"
        )
    return str(path)


def environment(tango_host: str, home: Path) -> dict[str, str]:
    kept = ("PATH", "JAVA_HOME", "LANG", "LD_LIBRARY_PATH")
    found = {name: os.environ[name] for name in kept if name in os.environ}
    return {**found, "TANGO_HOST": tango_host, "HOME": str(home), "PYTHONUNBUFFERED": "1"}


Output = subprocess.CompletedProcess[str]


def run(argv: Sequence[str], settings: Mapping[str, str], folder: Path, *, code: int = 0, text: str = "") -> Output:
    done = subprocess.run(
        argv, env=settings, cwd=folder, input=text, capture_output=True, text=True, timeout=HANG, check=False
    )
    print(done.stdout, done.stderr)  # shown by pytest when the test has failed
    assert done.returncode == code, f"{argv}: exit code {done.returncode}: {done.stderr[-2000:]}"
    return done


class LineClient:
    """A process that does what it is asked to by lines, answers in JSON, and tells of events."""

    def __init__(self, argv: Sequence[str], tango_host: str, folder: Path) -> None:
        self.events: list[dict[str, Any]] = []
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self.log = (folder / "client.log").open("w")
        self._process = subprocess.Popen(
            argv,
            env=environment(tango_host, folder),
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def ask(self, *words: object) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write("\t".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        return self._answers.get(timeout=HANG)

    def read(self, device: str, attribute: str) -> dict[str, Any]:
        """Return the value of something that comes: what stood still for 3 s is stale for a moment."""

        def valid() -> dict[str, Any]:
            found = self.ask("read", device, attribute)
            return found if "value" in found else {}

        return until(valid, f"{device} shows {attribute}")

    def subscribe(self, device: str, attribute: str) -> None:
        found = self.ask("subscribe", device, attribute)
        assert "id" in found, found

    def values(self, attribute: str) -> list[Any]:
        return [event.get("value") for event in list(self.events) if event["event"] == attribute]

    def end(self) -> int:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            return self._process.wait(HANG)
        finally:
            self._process.kill()
            self._reader.join()
            self.log.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                found = json.loads(line)
                if "event" in found:
                    self.events.append(found)
                else:
                    self._answers.put(found)
