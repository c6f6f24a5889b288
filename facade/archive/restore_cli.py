"""`sdp-facade archive restore`: fills the topics of a deployment on empty brokers."""

from functools import partial
from typing import Annotated, Final

import typer

from facade.admin.cluster import inspect_topics
from facade.admin.placing import KafkaPlacingWriter
from facade.admin.topics import create_topics, delete_records, set_timestamps
from facade.archive.cli import ArchiveLocation
from facade.archive.open_commands import TOPICS, describe_commands
from facade.archive.restore import MOST_FILLERS, RESERVE, LogNames, plan_restore, records_of, restore
from facade.archive.stores import open_store
from facade.kernel.bus.kafka.admin import KafkaTopicWatch
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.producer import KafkaWriter
from facade.kernel.bus.port import BusHealth
from facade.kernel.clock import Clock, SystemClock, utc_seconds
from facade.kernel.config import load_client_settings
from facade.kernel.console import ERR, OUT, moment
from facade.kernel.errors import BusError, ConfigError
from facade.kernel.icd.load import load
from facade.kernel.runtime.flow import Alerts
from facade.kernel.runtime.worker_process import open_alerts
from facade.kernel.severities import WARNING

_ALARM: Final = "topicsRestored"
_NUMBERED: Final = "alerts"
"""Topic whose offsets are numbers known to clients."""
_ANEW: Final = (
    f"WARNING: the topic {_NUMBERED} is not restored, so numbers of lost alerts may be given again to others: clients"
    " that follow alerts may leave out new ones. Restart these clients."
)
_OPEN: Final = (
    "These commands have no outcome in the archive, and may have been executed. Device servers end those with a record"
    " here as TIMED_OUT or UNDELIVERED. Compare the state of each device with the command before you repeat it."
)
_TOLD_WITHIN = 60.0
"""Time for which the alarm is repeated until the brokers have confirmed it [s]: leaders may move just then."""
_TOLD_EACH = 1.0


def restore_topics(
    place: ArchiveLocation,
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC", help="Leave this topic empty; its readers begin anew. Default: none."),
    ] = None,
    most_fillers: Annotated[
        int, typer.Option(min=0, help="Most offsets of a partition without a record, each of which takes a filler.")
    ] = MOST_FILLERS,
    reserve: Annotated[
        int,
        typer.Option(
            min=0,
            help="Offsets left out behind the end of each log, as lost records, such as alerts, may have had them.",
        ),
    ] = RESERVE,
) -> None:
    """Create the topics of KAFKA_BOOTSTRAP and SDP_TOPIC_PREFIX, and fill them with the records of an archive.

    No topic with the prefix may exist, and no other program may run. Each record gets its old offset, so numbers of
    alerts, totals and positions continue.

    Example: sdp-facade archive restore /data/archive --without ingest.heaps
    """
    store, settings, icd, clock = open_store(place), load_client_settings(), load(), SystemClock()
    connection = Connection(settings, clock=clock)
    if found := inspect_topics(connection, icd.topics):
        raise ConfigError(
            f"expected no topics with the prefix {settings.prefix!r} at {settings.bootstrap}, got {', '.join(found)}:"
            " restore a deployment to new brokers, or delete its topics first"
        )
    ERR.print("reads the archive, and verifies it", markup=False)
    plan = plan_restore(
        store,
        icd,
        prefix=settings.prefix,
        now_us=clock.now_us(),
        without=without or (),
        most_fillers=most_fillers,
        reserve=reserve,
    )
    anew = [] if any(topic == _NUMBERED for topic, _ in plan.partitions) else [_ANEW]
    for line in anew:
        ERR.print(line, markup=False)
    create_topics(connection, dict(plan.topics), replicas=settings.topic_replicas)
    now = KafkaTopicWatch(connection).extents(plan.topics)
    names = LogNames(icd, plan.ids, {name: one.id for name, one in now.items()})
    placing = KafkaPlacingWriter(connection, "archive-restore")

    def report(records: int, fillers: int, partitions: int) -> None:
        ERR.print(f"{records:,} records and {fillers:,} fillers; {partitions} partitions to go", markup=False)

    done = restore(store, plan, names, placing, clock, report)
    for (topic, partition), begin in done.begins.items():
        delete_records(connection, topic, partition, begin)
    set_timestamps(connection, icd.topics)
    # Records of other topics have their writer's time, or another one.
    by_brokers = {name for name, topic in icd.topics.items() if topic.timestamp == "LogAppendTime"}
    places = sorted(plan.partitions, key=lambda place: (place[0] in TOPICS and TOPICS.index(place[0]), place[1]))
    now_us = clock.now_us()
    open_ones = describe_commands(
        one for place in places if place[0] in TOPICS for one in records_of(store, plan, place, now_us)
    )
    newest = sorted((at, topic) for topic, at in done.newest.items() if topic in by_brokers)
    lines = [
        f"{done.records:,} records of {len({topic for topic, _ in done.ends})} topics are on the topics with the prefix"
        f" {settings.prefix!r}, each at its offset; {done.fillers:,} fillers stand for offsets without a record.",
        "Of each topic, what the brokers took after its newest record here is lost:",
        *(f"  {moment(at)}  {topic}" for at, topic in newest),
        *([f"{done.positions} positions of workers were behind their results, and were moved."] * bool(done.positions)),
        *([_OPEN, *open_ones] if open_ones else []),
        *anew,
        "Start workers, device servers and controllers. Give the archive worker a new folder.",
    ]
    for line in lines:
        OUT.print(line, markup=False)
    until = f"the topics were filled from {store}, each up to its newest record there"
    until += "".join(f"; the earliest of these is of {utc_seconds(at)}, on {topic}" for at, topic in newest[:1])
    writer = KafkaWriter(connection, health=BusHealth(), client="archive-restore-alerts")
    _tell(open_alerts("archive/restore", writer, clock), until, clock)


def _tell(alerts: Alerts, until: str, clock: Clock) -> None:
    # Followers use its number, after those of lost alerts, for the next one; see the decision on two sites.
    lost = f"{until}: records that the brokers took later are lost"
    give_up = clock.monotonic() + _TOLD_WITHIN
    for tell in (partial(alerts.raise_alert, _ALARM, WARNING, lost), partial(alerts.clear, _ALARM, until)):
        while True:
            try:
                tell()
                break
            except BusError as error:
                if clock.monotonic() >= give_up:
                    raise BusError(
                        f"the topics are complete, and only the alarm {_ALARM}, or its end, is missing: {error}."
                        f" Do not restore them again; tell the operators: {lost}"
                    ) from error
                clock.sleep(_TOLD_EACH)
