"""`sdp-facade archive replay` and `compare`: replays a time of an archive, and compares the results."""

import math
from enum import StrEnum
from shlex import quote
from typing import Annotated, Any

import typer

from facade.admin.cluster import inspect_topics
from facade.admin.topics import create_topics
from facade.archive.cli import ArchiveLocation
from facade.archive.compare import compare as compare_archives
from facade.archive.flow import LONGEST_STEP
from facade.archive.replay import PATIENCE, plan_replay, play, require_place
from facade.archive.stores import open_store
from facade.kernel.bus.kafka.admin import KafkaTopicWatch
from facade.kernel.bus.kafka.bus import KafkaBus
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.producer import KafkaStreamWriter
from facade.kernel.bus.port import BusHealth
from facade.kernel.clock import SystemClock, Time
from facade.kernel.config import load_client_settings
from facade.kernel.console import ERR, OUT, moment, table, wide
from facade.kernel.errors import BusError, ConfigError
from facade.kernel.icd.load import load
from facade.kernel.manifest import manifests
from facade.sdp.durations import parse_duration, parse_time
from facade.sdp.replay import ReplayTopic, make_order, newest_position, replay_record, why_not

_ANSWER = 10.0
"""Longest time of the replay to confirm an order [s]."""

Begin = Annotated[str, typer.Option("--from", metavar="TIME", help="Begin, such as 2027-01-14T18:00; UTC.")]
End = Annotated[str, typer.Option("--to", metavar="TIME", help="End; its own moment is left out.")]


def replay(
    place: ArchiveLocation,
    begin: Begin,
    end: End,
    speed: Annotated[str, typer.Option(metavar="N|max", help="How fast the time of the records runs.")] = "1",
    only: Annotated[
        list[str] | None, typer.Option(metavar="TOPIC", help="Play this topic. Default: all that SDP writes.")
    ] = None,
) -> None:
    """Play a time of an archive again, into the deployment of KAFKA_BOOTSTRAP and SDP_TOPIC_PREFIX.

    Its prefix must be a new one. Only what the programs of SDP wrote is played, with its own times; start workers to
    derive the rest. Commands are shown and never executed: start no controller there.

    Example: SDP_TOPIC_PREFIX=replay-1. sdp-facade archive replay /data/archive --from 2027-01-14T18:00
    --to 2027-01-15T06:00 --speed max
    """
    store, settings, icd, clock = open_store(place), load_client_settings(), load(), SystemClock()
    fast = _speed(speed)
    times = parse_time(begin, "--from"), parse_time(end, "--to")
    plan = plan_replay(store, icd, *times, prefix=settings.prefix, only=only or ())
    connection = Connection(settings, clock=clock)
    found = inspect_topics(connection, plan.topics)
    extents = KafkaTopicWatch(connection).extents(found)
    require_place(plan, settings.prefix, found, extents, settings.topic_replicas)
    create_topics(connection, dict(plan.topics), replicas=settings.topic_replicas)
    writer = KafkaStreamWriter(connection, health=BusHealth(), client="archive-replay", patience=PATIENCE)

    def report(time_us: Time, records: int, rate: float) -> None:
        ERR.print(f"{moment(time_us)}  {records:,} records  {rate:,.0f}/s", markup=False)

    steering = ReplayTopic(KafkaBus(connection, client="archive-replay-position"))
    count = play(store, plan, writer, clock, speed=fast, report=report, steering=steering)
    windowed = {name for name, topic in icd.topics.items() if topic.window is not None}
    workers = [
        " ".join(("sdp-facade", *worker.start))
        for manifest in manifests()
        for worker in manifest.workers
        if worker.reads(windowed) & set(plan.inputs)
    ]
    lines = [
        f"{count:,} records of {', '.join(plan.inputs)} are on the topics with the prefix {settings.prefix!r}.",
        "Start the workers that read them, with this prefix and the other settings of the original:",
        *(f"  {words}" for words in workers),
        "Start device servers with SDP_REPLAY=true only: others raise their own alarms again, and alarm states differ.",
        "When they have read all of it, archive what they wrote, and compare:",
        "  sdp-facade archive run FOLDER",
        f"  sdp-facade archive compare {quote(place)} FOLDER --from {quote(begin)} --to {quote(end)}",
        "Windows at the begin and the end lack records that were not played: compare a shorter time.",
        "Start no controller there: commands are on the bus, and nobody executes them.",
    ]
    for line in lines:
        OUT.print(line, markup=False)


class Steer(StrEnum):
    """Orders to a replay."""

    PAUSE = "pause"
    RESUME = "resume"
    STEP = "step"
    SEEK = "seek"


def control(
    order: Annotated[Steer, typer.Argument(help="What the replay is to do.")],
    to: Annotated[
        str, typer.Argument(metavar="[TIME|LENGTH]", help="seek: a later time of the archive; step: 10s or 5m.")
    ] = "",
) -> None:
    """Pause the replay that runs into the deployment of KAFKA_BOOTSTRAP and SDP_TOPIC_PREFIX, or let it go on.

    step plays a second of the archive, or as much as you say, and then pauses. seek plays up to a time without waiting,
    and then goes on as before; a replay does not go back.

    Example: SDP_TOPIC_PREFIX=replay-1. sdp-facade archive replay-control seek 2027-01-15T03:12
    """
    if (order is Steer.SEEK) > bool(to) or (to and order in (Steer.PAUSE, Steer.RESUME)):
        raise ConfigError(f"{order}: expected {'a time' if order is Steer.SEEK else 'nothing else'}, got {to!r:.100}")
    more: dict[str, Any] = {}
    if to:
        more = {"to": parse_time(to, "TIME")} if order is Steer.SEEK else {"seconds": parse_duration(to, "LENGTH")}
    if more.get("seconds", 0) > LONGEST_STEP:
        raise ConfigError(f"LENGTH: expected at most 1d, got {to!r:.100}; seek plays more")
    settings, clock = load_client_settings(), SystemClock()
    bus = KafkaBus(Connection(settings, clock=clock), client="archive-replay-control")
    action: Any = order.upper()
    given = make_order(action, "sdp-facade archive replay-control", now=clock.now_us(), **more)
    if why := why_not(given, newest_position(bus)):
        raise ConfigError(f"SDP_TOPIC_PREFIX={settings.prefix}: {why}")
    bus.writer().send_durably(replay_record(given), _ANSWER)
    until = clock.monotonic() + _ANSWER
    while (position := newest_position(bus)) is None or position.order != given.id:
        if clock.monotonic() > until:
            raise BusError(f"the replay has not answered within {_ANSWER:g} s: it was killed, or waits for the brokers")
        clock.sleep(0.1)
    if position.refused:
        raise ConfigError(position.refused)
    OUT.print(f"{moment(position.time)}  {position.state.lower()}", markup=False)


def _speed(text: str) -> float:
    try:
        speed = math.inf if text == "max" else float(text)
    except ValueError:
        speed = math.nan
    if not speed > 0 or (math.isinf(speed) and text != "max"):
        raise ConfigError(f"--speed: expected a number above 0, or max; got {text!r:.100}")
    return speed


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="Folder or URL of an archive, such as the one of a night.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The other archive, such as the one of its replay.")],
    begin: Annotated[str, typer.Option("--from", metavar="TIME", help="Begin. Default: all.")] = "",
    end: Annotated[str, typer.Option("--to", metavar="TIME", help="End; its own moment is left out.")] = "",
) -> None:
    """Compare the derived records of two archives: windows, command outcomes, alarm states, announced tables.

    Alarm states of a replay differ if its device servers ran without SDP_REPLAY=true: those raise their own again.
    Temporary files, of about the size of the summaries, are in the folder TMPDIR.

    Exit code 1: something differs.

    Example: sdp-facade archive compare /data/archive /data/replay --from 2027-01-14T18:01 --to 2027-01-15T05:59
    """
    times = {}
    if begin:
        times["begin_us"] = parse_time(begin, "--from")
    if end:
        times["end_us"] = parse_time(end, "--to")
    found = compare_archives(open_store(a), open_store(b), load(), **times)
    titles = ("kind", "compared", "equal", "differing", "note")
    rows = [
        (
            one.name,
            f"{one.compared:,}",
            f"{one.equal:,}",
            f"{one.differing:,}",
            one.note,
        )
        for one in found.kinds
    ]
    wide().print(table(titles, rows, whole=titles[:4]))
    for name, count in zip((a, b), found.undecoded, strict=True):
        if count:
            ERR.print(f"{name}: {count:,} records could not be decoded", markup=False)
    for difference in (one for kind in found.kinds for one in kind.differences):
        OUT.print(f"differs: {difference}", markup=False)
    OUT.print(f"digest of what is equal: {found.digest}", markup=False)
    if any(kind.differing for kind in found.kinds):
        raise typer.Exit(1)
