"""A broker and a Tango database of their own, and deployments on them; all of it ends with the testbed."""

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from facade.infra import local
from facade.kernel.config import Settings
from facade.kernel.errors import BusError
from sdp_facade_lab.deployment import Broker, Deployment
from sdp_facade_lab.progress import ProgressLine
from sdp_facade_lab.supervisor import Supervisor

WORKERS = 2
CONTROLLER_GROUP = "simulated-controller"
_STARTS_WITHIN = 300.0
_BEHIND_BROKERS = 10
"""Niceness of a deployment's processes beside several brokers."""


class Testbed:
    """Where measurements and fault runs are made."""

    def __init__(self, endpoints: local.Endpoints, folder: Path, progress: ProgressLine) -> None:
        self.endpoints, self.folder, self.progress = endpoints, folder, progress
        self.broker = Broker(endpoints.state_dir, progress.clock)

    @contextmanager
    def deployment(self, name: str, *, partitions: int | None = 1, **settings: Any) -> Iterator[Deployment]:
        """Make a deployment with empty topics; its processes are killed, its topics deleted at the end.

        Parameters
        ----------
        partitions
            Of the topic of the heap notifications; None: as the ICD says.
        settings
            See `facade.kernel.config.Settings`.
        """
        settings = {"without": "mirror,logs,logs-aggregate", **settings}  # nothing of the telescope is there
        where = self.endpoints
        kafka = {} if where.security is None else where.security.kafka_settings()
        chosen = Settings(
            bootstrap=where.bootstrap, prefix=f"{name}.", topic_replicas=where.brokers, kafka=kafka, **settings
        )
        # At a site, brokers have machines of their own. Here, several that have just started would get too little of
        # the processors, beside all that asks them, to keep their replicas in sync.
        niceness = _BEHIND_BROKERS if where.brokers > 1 else 0
        processes = Supervisor(self.folder / name, self.progress.clock, niceness=niceness)
        made = Deployment(chosen, self.endpoints, self.progress, processes, {"SDP_LOG_LEVEL": "WARNING"})
        source = made.icd.topics["ingest.heaps"]
        source = msgspec.structs.replace(source, partitions=partitions or source.partitions)
        made.grant_rights(CONTROLLER_GROUP)
        made.create_topics({"ingest.heaps": source})
        try:
            yield made
        finally:
            processes.stop_all(kill=True)
            with suppress(BusError):  # the broker itself may be gone: then its folder is removed anyway
                made.delete_topics()

    @contextmanager
    def system(self, name: str, *, within: float = _STARTS_WITHIN, **settings: Any) -> Iterator[Deployment]:
        """Make a whole facade: a deployment, its devices registered, all its device servers and workers started."""
        with self.deployment(name, partitions=None, **settings) as made:
            made.prune()  # measurements before this one may have had more devices
            self.progress.step(f"  {made.register()} devices registered; starting {', '.join(made.instances)}")
            for instance in made.instances:
                made.server(instance)
            for slot in range(WORKERS):
                made.worker(slot)
            for instance in made.instances:

                def is_up(instance: str = instance) -> bool:
                    made.processes.check()
                    return made.answers(instance)

                self.progress.demand(is_up, within, f"the device server {instance}")
            yield made


@contextmanager
def testbed(parent: Path, progress: ProgressLine, *, brokers: int, secure: bool) -> Iterator[Testbed]:
    logging.getLogger("facade.kernel.bus").setLevel(logging.CRITICAL)  # runs take the broker away on purpose
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=parent.resolve(), ignore_cleanup_errors=True) as folder:
        state_dir = Path(folder) / "infra"
        try:
            endpoints = local.up(
                local.LocalOptions(state_dir=state_dir, brokers=brokers, secure=secure), report=progress.step
            )
            yield Testbed(endpoints, Path(folder), progress)
        finally:
            local.down(state_dir, wipe=True)
