"""A night that is archived while it passes, then verified, played again into a second deployment, and compared."""

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from msgspec.structs import replace

from facade.admin.cluster import describe_group
from facade.archive.compare import ArchiveComparison, compare
from facade.archive.files import PartitionReport, verify
from facade.archive.reading import extent, newest_entries
from facade.archive.reading import topics as topics_of
from facade.archive.stores import FolderStore
from facade.flows.alerts.messages import STATES
from facade.flows.commands.messages import ACKS
from facade.flows.logs.messages import SUMMARY
from facade.flows.tables.messages import TABLES
from facade.flows.telemetry.plan import windowed
from facade.infra.processes import Process
from facade.kernel.bus.kafka.admin import KafkaTopicWatch, newest_records
from facade.kernel.bus.kafka.bus import KafkaBus
from facade.kernel.bus.offsets import ACCOUNTS
from facade.kernel.clock import NEVER, utc_text
from facade.kernel.errors import BusError, InfraError
from facade.kernel.manifest import WorkerEntry, manifests
from facade.sdp.messages import ReplayPosition
from facade.sdp.replay import inputs, newest_position
from sdp_facade_lab.deployment import Deployment

WORKER: Final = "archive-worker"
_AGAIN: Final = "replay"
_LOOKS: Final = "inspector"
"""Role that looks how far all is."""
_EVERY: Final = "10s"
"""Longest time until a record is in a file: a person waits for the last one."""
_NEWEST: Final = 20
"""Offsets at the end of a partition among which there is a record: others are marks of transactions."""
_WITHIN: Final = 3600.0
"""Time after which a part of the run counts as hanging [s]."""

_ALARMS: Final = "alarm states"
"""The kind of results that only device servers make."""

Made = TypeVar("Made")


def uncompared(found: ArchiveComparison, needed: Collection[str], *, without: Collection[str] = ()) -> list[str]:
    """Return what a comparison of a night and its replay has left out.

    Parameters
    ----------
    needed
        Kinds of results that the night has.
    without
        Kinds that the replay does not make.
    """
    compared = {kind.name for kind in found.kinds if kind.compared}
    notes = {kind.name: kind.note for kind in found.kinds if kind.note.startswith("not compared")}
    kinds = sorted((notes.keys() | set(needed) - compared) - set(without))
    faults = [f"{name}: {notes.get(name, 'expected results to compare, got none')}" for name in kinds]
    if any(found.undecoded):
        faults.append("expected records that can be decoded, got {:,} and {:,} others".format(*found.undecoded))
    return faults


class RecordedNight:
    """The archive of a deployment, and the archive of its replay on the same broker.

    Parameters
    ----------
    folder
        For the files.
    """

    def __init__(self, deployment: Deployment, folder: Path) -> None:
        self._deployment, self._progress = deployment, deployment.progress
        self.original, self._again = folder / "original", folder / _AGAIN
        prefix = f"{deployment.settings.prefix.removesuffix('.')}-{_AGAIN}."
        settings = replace(deployment.settings, prefix=prefix)
        self.again = Deployment(
            settings, deployment.endpoints, self._progress, deployment.processes, {"SDP_REPLAY": "true"}
        )
        """Where it is played: its workers and device servers take the time from the replay."""
        self.again.logins = deployment.logins

    def record(self) -> Process:
        """Start the archive worker; after a kill, again."""
        # Its own logs on the bus would never end: it writes a line of those that it has just kept.
        words = ["archive", "run", self.original, "--every", _EVERY]
        return self._deployment.launch(WORKER, *words, login="archive-run", SDP_LOG_EXPORT="")

    def close(self) -> list[PartitionReport]:
        """Wait until all that is on the topics is in files, end the worker, and verify the files."""
        self._archived("archived", self._deployment, WORKER, self.original, [*self._deployment.icd.topics])
        found, took = self.work("verify", lambda: [*verify(FolderStore(self.original))])
        faults = [fault for one in found for fault in one.faults]
        self._progress.step(
            f"verified: {sum(one.records for one in found):,} records, each in one file;"
            f" {len(faults)} gaps, overlaps or damaged files; {took:.1f} s"
        )
        for fault in faults:
            self._progress.step(f"  {fault}")
        return found

    def replay(
        self,
        speed: str,
        needed: Collection[str],
        instances: Collection[str] = (),
        is_shown: Callable[[ReplayPosition], bool] = lambda _: True,
    ) -> tuple[ArchiveComparison, list[str]]:
        """Play all of it, let workers and device servers derive the rest, and compare that; see `uncompared`.

        Parameters
        ----------
        needed
            Kinds of results that the night has.
        instances
            Device servers that show it.
        is_shown
            Whether they show its end.
        """
        again, store, icd = self.again, FolderStore(self.original), self._deployment.icd
        again.grant_rights()
        begin, end = extent(store) or (NEVER, NEVER)
        times = ["--from", utc_text(begin), "--to", utc_text(end)]
        words = ["archive", "replay", self.original, *times, "--speed", speed]
        replay = again.launch(_AGAIN, *words, ends=True, login="replay")
        took = self._progress.demand(
            lambda: bool(self._position()) or not replay.is_alive, _WITHIN, "the begin of the replay"
        )
        played = {*inputs(icd)} & {*topics_of(store)}
        workers = [one for one, topics in self._workers().items() if topics & played]
        names = [again.launch(f"{_AGAIN}-{worker.name}", *worker.start, login=worker.name).name for worker in workers]
        names += [again.server(one, name=f"{_AGAIN}-{one}").name for one in instances]
        self._progress.step(f"replay: begun, and read again by {', '.join(names)}")
        took += self.finished(replay, _AGAIN)
        took += self.read(again, *(worker.name for worker in workers))
        took += self._progress.demand(
            lambda: bool((at := self._position()) and is_shown(at)), _WITHIN, "the end of the replay is shown"
        )
        for name in names:
            again.processes.stop(name)
        windows = [topic.window for topic in icd.topics.values() if topic.window is not None]
        derived = sorted({window.summary for window in windows} | {ACKS, TABLES, ACCOUNTS, SUMMARY})
        derived += [STATES] if instances else []
        only = [word for topic in derived for word in ("--only", topic)]
        words = ["archive", "run", self._again, "--every", "1s", *only]
        again.launch(f"{_AGAIN}-{WORKER}", *words, login="archive-run")
        self._archived("replay archived", again, f"{_AGAIN}-{WORKER}", self._again, derived)
        found, compared = self.work("compare", lambda: compare(store, FolderStore(self._again), icd))
        left = uncompared(found, needed, without=() if instances else (_ALARMS,))
        kinds = [kind for kind in found.kinds if kind.compared]
        self._progress.step(
            f"replayed {'NOT ' * (bool(left) or any(kind.differing for kind in kinds))}equal: "
            + ", ".join(f"{kind.equal:,} of {kind.compared:,} {kind.name}" for kind in kinds)
            + f"; {took:.1f} s, and {compared:.1f} s to compare; digest {found.digest[:12]}"
        )
        return found, left

    def read(self, deployment: Deployment, *workers: str) -> float:
        """Wait until some workers have read all that is on their topics; return how long it took [s]."""
        roles, known = deployment.icd.roles, self._workers()
        topics = {roles[one.name].group: of for one, of in known.items() if one.name in workers}
        connection = deployment.connection_of(_LOOKS)
        extents = KafkaTopicWatch(connection).extents(set().union(*topics.values()))
        ends = {
            (group, topic, partition): end
            for group, of in topics.items()
            for topic in of
            for partition, (_, end) in extents[topic].ranges.items()
        }

        def is_read() -> bool:
            positions = {group: describe_group(connection, group).positions for group in topics}
            read = {(group, one.topic, one.partition): one.committed for group, at in positions.items() for one in at}
            return all(read.get(place, 0) >= end for place, end in ends.items())

        return self._progress.demand(is_read, _WITHIN, f"all is read by {', '.join(workers)}")

    def _position(self) -> ReplayPosition | None:
        try:
            return newest_position(KafkaBus(self.again.connection_of(_LOOKS), client="night"))
        except BusError:  # there is no topic yet
            return None

    def _workers(self) -> dict[WorkerEntry, set[str]]:
        return {worker: worker.reads(windowed(self._deployment.icd)) for one in manifests() for worker in one.workers}

    def _archived(self, what: str, deployment: Deployment, worker: str, folder: Path, topics: Collection[str]) -> None:
        """Wait until all that is on some topics now is in files, and end the worker."""
        store = FolderStore(folder)
        connection = deployment.connection_of(_LOOKS)
        newest = (one for topic in topics for one in newest_records(connection, topic, _NEWEST))
        left = {(one.topic, one.partition): one.offset for one in newest}

        def are_kept() -> bool:
            for one in newest_entries(store, {topic for topic, _ in left}):
                if left.get((one.topic, one.partition), one.next) < one.next:
                    del left[one.topic, one.partition]
            return not left

        took = self._progress.demand(are_kept, _WITHIN, "the newest records are in files")
        deployment.processes.stop(worker)
        sizes = [(folder / name).stat().st_size for name in store.names()]
        self._progress.step(
            f"{what}: {len(topics_of(store))} topics in {len(sizes):,} files of {sum(sizes) / 1e6:,.1f} MB;"
            f" the newest records were there after {took:.1f} s"
        )

    def finished(self, process: Process, name: str) -> float:
        took = self._progress.demand(lambda: not process.is_alive, _WITHIN, f"the end of {name}")
        self._deployment.processes.forget(name)
        if process.code != 0:
            raise InfraError(f"{name} ended with exit code {process.code}; the end of {process.log}:\n{process.tail()}")
        return took

    def work(self, what: str, work: Callable[[], Made]) -> tuple[Made, float]:
        future = ThreadPoolExecutor(1).submit(work)
        took = self._progress.demand(future.done, _WITHIN, what)
        return future.result(), took
