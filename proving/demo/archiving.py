"""The archive of a demo: kept while it runs, and in the end verified, played again, compared and reported."""

import shutil
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final, TypeVar

from msgspec.structs import replace

from facade.bus.kafka.admin import KafkaTopicWatch, describe_group, newest_records
from facade.bus.kafka.topics import delete_topics
from facade.bus.offsets import ACCOUNTS
from facade.clock import utc_text
from facade.errors import BusError, InfraError
from facade.flows.archive.compare import compare
from facade.flows.archive.files import verify
from facade.flows.archive.reading import extent, newest_entries
from facade.flows.archive.reading import topics as topics_of
from facade.flows.archive.replay import inputs
from facade.flows.archive.stores import FolderStore
from facade.flows.commands.messages import ACKS
from facade.flows.tables.messages import TABLES
from facade.manifest import WorkerEntry, manifests
from proving.demo.account import BalanceLine, disagreeing
from proving.demo.system import Demo
from proving.deployment import Deployment

ARCHIVE: Final = "archive"
_AGAIN: Final = "replay"
_HEAPS: Final = "ingest.heaps"
_EVERY: Final = "10s"
"""Longest time until a record is in a file: a person waits for the last one."""
_NEWEST: Final = 20
"""Offsets at the end of a partition among which there is a record: others are marks of transactions."""
_WITHIN: Final = 3600.0
"""After so long a part of it hangs [s]."""
_LOOK_EACH: Final = 0.2
_TOLD_AFTER: Final = 2.0
"""Time until a line says how far something is [s]."""
_TOLD_EACH: Final = 5.0
"""Time between further ones [s]."""

Made = TypeVar("Made")


class ArchiveScenario:
    """Keeps an archive of all topics, and plays it again into a second deployment on the same broker."""

    def __init__(self, demo: Demo, stack: ExitStack) -> None:
        self._demo, self._stack, self._progress = demo, stack, demo.progress
        self._folder = demo.options.archive_folder
        self._original, self._again = self._folder / "original", self._folder / _AGAIN

    def begin(self) -> None:
        """Start the archive worker; the files of an earlier demo go."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._demo.deployment.launch(ARCHIVE, "archive", "run", self._original, "--every", _EVERY)
        self._progress.step(f"archive: all topics are kept in {self._original}")

    def end(self) -> None:
        """Verify the archive, play it again, compare what came of it, and report."""
        report, topics = self._demo.report, [*self._demo.icd.topics]
        self._archive("archived", self._demo.deployment, ARCHIVE, self._original, topics)
        lines = [*self._verify(), *self._play_again()]
        report.archive_account = [BalanceLine(ARCHIVE, *line) for line in lines]
        wrong = disagreeing(ARCHIVE, report.archive_account)
        report.failures += wrong
        report.balanced = report.balanced and not wrong
        self._report()

    def _archive(self, what: str, deployment: Deployment, worker: str, folder: Path, topics: Collection[str]) -> None:
        """Wait until all that is on some topics now is in files, and end the worker."""
        store = FolderStore(folder)
        newest = (one for topic in topics for one in newest_records(deployment.connection, topic, _NEWEST))
        left = {(one.topic, one.partition): one.offset for one in newest}

        def partitions() -> str:
            for one in newest_entries(store, {topic for topic, _ in left}):
                if left.get((one.topic, one.partition), one.next) < one.next:
                    del left[one.topic, one.partition]
            return f"{len(left)} partitions are not yet in files" if left else ""

        took = self._await(partitions, f"{worker} worker")
        self._demo.processes.stop(worker)
        sizes = [(folder / name).stat().st_size for name in store.names()]
        self._progress.step(
            f"{what}: {len(topics_of(store))} topics in {len(sizes):,} files of {sum(sizes) / 1e6:,.1f} MB;"
            f" the newest records were there after {took:.1f} s"
        )

    def _verify(self) -> list[tuple[str, int, int]]:
        found, took = self._work("verify", lambda: [*verify(FolderStore(self._original))])
        faults = [fault for one in found for fault in one.faults]
        self._progress.step(
            f"verified: {sum(one.records for one in found):,} records, each in one file;"
            f" {len(faults)} gaps, overlaps or damaged files; {took:.1f} s"
        )
        for fault in faults:
            self._progress.step(f"  {fault}")
        lines = [("faults that verify found", 0, len(faults))]
        if (sent := self._demo.report.sent) is not None:
            heaps = sum(one.records for one in found if one.topic == _HEAPS)
            lines.append(("notifications in files", sent.expected.consumed, heaps))
        return lines

    def _play_again(self) -> list[tuple[str, int, int]]:
        """Play all of it into a deployment of its own, let workers derive the rest, and compare that."""
        demo, store = self._demo, FolderStore(self._original)
        prefix = f"{demo.report.topic_prefix.removesuffix('.')}-{_AGAIN}."
        settings = replace(demo.deployment.settings, prefix=prefix)
        again = Deployment(settings, demo.deployment.endpoints, self._progress, demo.processes)
        self._stack.callback(self._delete_topics, again)
        begin, end = extent(store) or (0, 0)
        times = ["--from", utc_text(begin), "--to", utc_text(end)]
        took = self._command(again, _AGAIN, "archive", "replay", self._original, *times, "--speed", "max")
        windows = {name: topic.window for name, topic in demo.icd.topics.items() if topic.window is not None}
        played = {*inputs(demo.icd)} & {*topics_of(store)}
        workers = {
            worker: topics
            for manifest in manifests()
            for worker in manifest.workers
            if (topics := played & {*(worker.topics or windows)})
        }
        took += self._derive(again, workers)
        derived = sorted({window.summary for window in windows.values()} | {ACKS, TABLES, ACCOUNTS})
        only = [word for topic in derived for word in ("--only", topic)]
        again.launch(f"{_AGAIN}-{ARCHIVE}", "archive", "run", self._again, "--every", "1s", *only)
        self._archive("replay archived", again, f"{_AGAIN}-{ARCHIVE}", self._again, derived)
        found, compared = self._work("compare", lambda: compare(store, FolderStore(self._again), demo.icd))
        kinds = [kind for kind in found.kinds if kind.compared]
        differing = sum(kind.differing for kind in kinds)
        self._progress.step(
            f"replayed {'NOT ' * bool(differing)}equal: "
            + ", ".join(f"{kind.equal:,} of {kind.compared:,} {kind.name}" for kind in kinds)
            + f"; {took:.1f} s, and {compared:.1f} s to compare"
        )
        for difference in (one for kind in kinds for one in kind.differences):
            self._progress.step(f"  {difference}")
        return [("results that differ after a replay", 0, differing)]

    def _derive(self, again: Deployment, workers: dict[WorkerEntry, set[str]]) -> float:
        """Let workers read all that was replayed; return how long it took [s]."""
        extents = KafkaTopicWatch(again.connection).extents(set().union(*workers.values()))
        groups = {worker: again.icd.roles[worker.name].group for worker in workers}
        ends = {
            (groups[worker], topic, partition): end
            for worker, topics in workers.items()
            for topic in topics
            for partition, (_, end) in extents[topic].ranges.items()
        }
        names = [worker.name for worker in workers]
        self._progress.step(f"replay: {sum(ends.values()):,} records to be read again by {', '.join(names)}")
        for worker in workers:
            again.launch(f"{_AGAIN}-{worker.name}", *worker.start)

        def records() -> str:
            positions = {group: describe_group(again.connection, group).positions for group in groups.values()}
            read = {(group, one.topic, one.partition): one.committed for group, at in positions.items() for one in at}
            left = sum(end - read.get(place, 0) for place, end in ends.items())
            return f"{left:,} records to go" if left else ""

        took = self._await(records, "workers of the replay")
        for name in names:
            self._demo.processes.stop(f"{_AGAIN}-{name}")
        return took

    def _report(self) -> None:
        file, demo = self._folder / "report.html", self._demo
        times = ["--from", utc_text(round(demo.report.began * 1e6)), "--to", utc_text(round(demo.clock.now() * 1e6))]
        took = self._command(demo.deployment, "report", "report", self._original, *times, "--output", file)
        self._progress.step(f"report made: {file}, {file.stat().st_size / 1e3:,.0f} kB; {took:.1f} s")

    def _delete_topics(self, again: Deployment) -> None:
        try:
            delete_topics(again.connection)
        except BusError as error:
            self._progress.step(f"topics of the replay: left for the next demo to delete: {error}")

    # Waiting, with a line now and then

    def _command(self, deployment: Deployment, name: str, *words: object) -> float:
        """Run a command to its end; return how long it took [s]."""
        process = deployment.launch(name, *words, ends=True)

        def newest_line() -> str:
            return (process.tail().strip().rpartition("\n")[2].strip() or "begins") if process.is_alive else ""

        took = self._await(newest_line, name)
        self._demo.processes.forget(name)
        if process.code != 0:
            raise InfraError(f"{name} ended with exit code {process.code}; the end of {process.log}:\n{process.tail()}")
        return took

    def _work(self, what: str, work: Callable[[], Made]) -> tuple[Made, float]:
        """Do something in a thread; return its result, and how long it took [s]."""
        future = ThreadPoolExecutor(1).submit(work)
        took = self._await(lambda: "" if future.done() else "reads on", what)
        return future.result(), took

    def _await(self, left: Callable[[], str], what: str) -> float:
        """Wait until nothing is said to be left; return how long it took [s]."""
        clock = self._demo.clock
        began = clock.monotonic()
        tell = began + _TOLD_AFTER
        while text := left():
            now = clock.monotonic()
            if now - began > _WITHIN:
                raise InfraError(f"{what}: expected within {_WITHIN:g} s; {text}")
            if now >= tell:
                tell = now + _TOLD_EACH
                self._progress.step(f"  {what}: {text}")
            self._progress.wait(_LOOK_EACH)
        return clock.monotonic() - began
