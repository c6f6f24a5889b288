"""`sdp-facade archive unarchived`: lists what brokers have that an archive lacks, such as those of a site that is back.

A record has one log and one offset for ever, and a file of an archive names both. So no restore could bring the records
behind the newest file of each partition to another site. Records that are missing between two files of the archive are
not listed here: `archive verify` names them.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Annotated

import typer

from facade.archive.cli import ArchiveLocation, chosen_topics
from facade.archive.files import no_archive
from facade.archive.open_commands import TOPICS, describe_commands
from facade.archive.reading import newest_entries
from facade.archive.stores import Store, open_store
from facade.flows.alerts.messages import ALERTS, Alert, decode_alert_or_action
from facade.kernel.bus.kafka.admin import KafkaTopicWatch
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.read_range import read_range
from facade.kernel.bus.offsets import TopicWatch, is_log_of
from facade.kernel.bus.port import Record
from facade.kernel.clock import NEVER, SystemClock, Time, utc_seconds
from facade.kernel.config import load_client_settings
from facade.kernel.console import ERR, OUT, moment, table
from facade.kernel.errors import ConfigError
from facade.kernel.icd.load import load
from facade.kernel.printable import printable

_MOST_SHOWN = 50
_MOST_KEPT = 100_000
"""Most records of a topic that are kept in memory to be listed one by one."""


@dataclass(slots=True)
class Unarchived:
    """The records of one topic that an archive lacks."""

    topic: str
    records: int = 0
    oldest: Time = NEVER
    newest: Time = NEVER
    removed: int = 0
    """Offsets that the brokers have removed before they were archived."""
    kept: list[Record] = field(default_factory=list)
    """The records themselves, of the topics that are listed one by one."""


def unarchived(
    store: Store, watch: TopicWatch, connection: Connection, topics: Collection[str]
) -> Iterator[Unarchived]:
    """Yield what each topic has behind the newest file of its partitions; a topic with nothing is left out.

    Raises
    ------
    ConfigError
        The archive is not of these brokers, or they do not show one of its topics.
    ArchiveError
        There is no archive, or it cannot be read.
    BusError
        The brokers do not answer.
    """
    if not store.names():
        raise no_archive(store)
    newest = {(one.topic, one.partition): one for one in newest_entries(store, topics)}
    prefix = connection.prefix
    if odd := sorted({one.deployment for one in newest.values()} - {prefix}):
        what = f"expected an archive of the deployment {prefix!r}, got one of {odd[0]!r}"
        raise ConfigError(f"{what}: check SDP_TOPIC_PREFIX")
    extents = watch.extents(topics)
    if gone := sorted({topic for topic, _ in newest} - extents.keys()):
        what = "the archive has records, but the brokers show no such topic"
        raise ConfigError(f"{', '.join(gone)}: {what}: check SDP_TOPIC_PREFIX, and the right to describe topics")
    for topic, extent in extents.items():
        found, ranges = Unarchived(topic), dict[int, tuple[int, int]]()
        for partition, (first, end) in extent.ranges.items():
            entry = newest.get((topic, partition))
            if entry is not None and not is_log_of(entry.log, extent.id):
                raise ConfigError(
                    f"{topic}, partition {partition}: expected the log of the archive, {entry.log}, got the topic"
                    f" {extent.id}: name the brokers whose records the archive has"
                )
            if entry is not None and entry.next > end:
                raise ConfigError(
                    f"{topic}, partition {partition}: expected offset {entry.next} or later as the end of the log,"
                    f" where the archive goes on, got {end}: the brokers have lost records, which the archive has"
                )
            after = first if entry is None else entry.next
            found.removed += max(0, first - after)
            if end > max(first, after):
                ranges[partition] = max(first, after), end
        for record in read_range(connection, topic, ranges) if ranges else ():
            found.records += 1
            found.oldest = record.timestamp_us if found.oldest == NEVER else min(found.oldest, record.timestamp_us)
            found.newest = max(found.newest, record.timestamp_us)
            if topic in (*TOPICS, ALERTS) and len(found.kept) < _MOST_KEPT:
                found.kept.append(record)
        if found.records or found.removed:
            yield found


def describe_alerts(records: list[Record]) -> list[str]:
    """Return a line for each alert, the oldest first."""
    alerts = [one for record in records if isinstance(one := decode_alert_or_action(record.value), Alert)]
    lines = [
        printable(
            f"  {utc_seconds(one.raised_at)}  {one.severity} {one.condition}@{one.source} {one.state}: {one.text}"
        )
        for one in sorted(alerts, key=lambda one: one.raised_at)
    ]
    more = [f"  and {len(lines) - _MOST_SHOWN} later ones"] if len(lines) > _MOST_SHOWN else []
    return lines[:_MOST_SHOWN] + more


def list_unarchived(
    place: ArchiveLocation,
    only: Annotated[list[str] | None, typer.Option(metavar="TOPIC", help="Read this topic. Default: all.")] = None,
) -> None:
    """List what the brokers of KAFKA_BOOTSTRAP and SDP_TOPIC_PREFIX have, and an archive of them lacks.

    The exit code is 0 whatever is listed. Nothing is changed: `archive run` with the same folder adds the records to
    it. Give the topics of the archive by `--only` if it does not have all of them, such as the measurements.

    Example: sdp-facade archive unarchived /data/archive --only alerts --only commands
    """
    clock, topics = SystemClock(), chosen_topics(only, load())
    connection = Connection(load_client_settings(), clock=clock)
    ERR.print("reads the ends of the archive, and what the brokers have behind them", markup=False)
    found = list(unarchived(open_store(place), KafkaTopicWatch(connection), connection, topics))
    if not found:
        what = f"every record of {', '.join(topics)}" if only else "every record"
        OUT.print(f"The archive has {what} of these brokers.", markup=False)
        return
    rows = [
        (
            one.topic,
            f"{one.records:,}",
            moment(one.oldest) if one.records else "",
            moment(one.newest) if one.records else "",
            f"{one.removed:,}",
        )
        for one in found
    ]
    OUT.print(table(("topic", "records", "oldest", "newest", "offsets removed before"), rows))
    records = {one.topic: one.kept for one in found}
    for one in found:
        if _MOST_KEPT == len(one.kept) < one.records:
            OUT.print(f"note: of {one.topic}, only the first {_MOST_KEPT:,} records are listed", markup=False)
    commands = describe_commands([one for topic in TOPICS for one in records.get(topic, [])], ended=True)
    alerts = describe_alerts(records.get(ALERTS, []))
    for title, lines in (("Commands that the archive lacks:", commands), ("Alerts that the archive lacks:", alerts)):
        for line in [title, *lines] if lines else []:
            OUT.print(line, markup=False)
