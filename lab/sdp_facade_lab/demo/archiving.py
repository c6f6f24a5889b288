"""The archive of a demo: kept while it runs, and in the end verified, played again, compared and reported."""

import shutil
from contextlib import ExitStack
from typing import Final

from facade.kernel.clock import as_time, utc_text
from facade.kernel.errors import BusError
from sdp_facade_lab.demo.system import Demo
from sdp_facade_lab.heap_account import BalanceLine
from sdp_facade_lab.recorded_night import RecordedNight

ARCHIVE: Final = "archive"
_HEAPS: Final = "ingest.heaps"


class ArchiveScenario:
    """Keeps an archive of all topics, and plays it again into a second deployment on the same broker."""

    def __init__(self, demo: Demo, stack: ExitStack) -> None:
        self._demo, self._stack, self._progress = demo, stack, demo.progress
        self._folder = demo.options.archive_folder
        self._night = RecordedNight(demo.deployment, self._folder)

    def begin(self) -> None:
        """Start the archive worker; the files of an earlier demo go."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._night.record()
        self._progress.step(f"archive: all topics are kept in {self._night.original}")

    def end(self) -> None:
        """Verify the archive, play it again, compare what came of it, and report."""
        report = self._demo.report
        lines = [BalanceLine(ARCHIVE, *line) for line in (*self._verify(), *self._play_again())]
        self._demo.balance(ARCHIVE, lines)
        report.balanced = report.balanced and all(line.agrees for line in lines)
        self._report()

    def _verify(self) -> list[tuple[str, int, int]]:
        found = self._night.close()
        lines = [("faults that verify found", 0, sum(len(one.faults) for one in found))]
        if (sent := self._demo.report.sent) is not None:
            heaps = sum(one.records for one in found if one.topic == _HEAPS)
            lines.append(("notifications in files", sent.expected.consumed, heaps))
        return lines

    def _play_again(self) -> list[tuple[str, int, int]]:
        self._stack.callback(self._delete_topics)
        needed = ["windows of ingest.heaps", "balances", "tables"]
        needed += ["command outcomes"] * self._demo.options.controller + ["sums of logs"] * self._demo.options.logs
        found, left = self._night.replay("max", needed)
        for fault in [*left, *(one for kind in found.kinds for one in kind.differences)]:
            self._progress.step(f"  {fault}")
        return [
            ("results that differ after a replay", 0, sum(kind.differing for kind in found.kinds)),
            ("faults of the comparison after a replay", 0, len(left)),
        ]

    def _report(self) -> None:
        file, demo = self._folder / "report.html", self._demo
        times = ["--from", utc_text(as_time(demo.report.began)), "--to", utc_text(demo.clock.now_us())]
        words = ["report", self._night.original, *times, "--output", file]
        took = self._night.finished(demo.deployment.launch("report", *words, ends=True, login=None), "report")
        self._progress.step(f"report made: {file}, {file.stat().st_size / 1e3:,.0f} kB; {took:.1f} s")

    def _delete_topics(self) -> None:
        try:
            self._night.again.delete_topics()
        except BusError as error:
            self._progress.step(f"topics of the replay: left for the next demo to delete: {error}")
