"""The processes of a demo: none is forgotten, and one that ends by itself is noticed unless it should."""

import signal
from pathlib import Path

import pytest

from facade.clock import ManualClock
from facade.errors import InfraError
from facade.infra import processes
from facade.infra.processes import ProcessRecord
from proving.demo.processes import Processes


def dead(name: str) -> ProcessRecord:
    """Return the record of a process of another boot."""
    return ProcessRecord(name=name, pid=1, start_ticks=0, boot_id="another", argv=("true",), log="none.log")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_a_start_comes_once_the_process_is_written_down(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spawn(name: str, *_: object, **__: object) -> ProcessRecord:
        signal.raise_signal(number)
        return dead(name)

    def on_signal(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(processes, "spawn", spawn)
    before = signal.signal(number, on_signal)
    try:
        with pytest.raises(KeyboardInterrupt):
            Processes(tmp_path, ManualClock()).start("worker", ["true"])
        assert signal.getsignal(number) is on_signal
    finally:
        signal.signal(number, before)
    assert '"worker"' in (tmp_path / "processes.json").read_text()


@pytest.mark.parametrize("ends", [False, True])
def test_a_process_may_end_by_itself_only_if_that_was_said(
    ends: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "spawn", lambda name, *_, **__: dead(name))
    running = Processes(tmp_path, ManualClock())
    running.start("tm", ["true"], ends=ends)
    if ends:
        running.check()
    else:
        with pytest.raises(InfraError, match=r"tm .* ended by itself"):
            running.check()
