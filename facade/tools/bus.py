"""`sdp-facade bus check`: the faults of the bus, with their severity."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated

import typer
from rich.markup import escape

from facade.admin import bus_checks
from facade.admin import cluster as brokers
from facade.admin.cluster import TopicState
from facade.admin.topics import differences
from facade.kernel.bus.kafka import admin
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.refusals import lacks_right
from facade.kernel.clock import NEVER, NOTHING, as_duration, as_seconds, as_time, utc_seconds
from facade.kernel.config import Settings, load_settings
from facade.kernel.console import AsJson, say
from facade.kernel.errors import BusError, ConfigError
from facade.kernel.findings import EXIT_CODES, FAILED, NOTE, RANKS, STYLES, UNKNOWN, Finding, line, overall
from facade.kernel.icd.load import load
from facade.kernel.icd.model import Icd
from facade.kernel.manifest import manifests
from facade.kernel.runtime import heartbeats
from facade.kernel.runtime.heartbeats import Heard, HeartbeatMessage, decode_heartbeat
from facade.sdp.replay import replay_topics

_HEARD = 500
"""Heartbeats to read."""
_CLOCK_WAIT = as_seconds(2 * heartbeats.SILENT)
"""Longest wait for a new heartbeat [s]."""
_MIN_INSYNC = "min.insync.replicas"


def check(
    role: Annotated[
        list[str] | None,
        typer.Option(help="Role of the ICD that this principal plays, such as aggregate; repeatable. Default: none."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the faults of the bus, the worst first, with their severity and what to do.

    It looks at topics, replicas, rights, encryption, positions of workers, clocks and versions. It writes nothing.
    Notes name the host of each device server, standby and worker of the facade.
    Rights are checked for the roles that are named. The exit code is 0 if all is OK, 1 DEGRADED, 2 FAILED, 3 UNKNOWN.

    Example: KAFKA_BOOTSTRAP=127.0.0.1:9092 sdp-facade bus check --role aggregate
    """
    settings = load_settings()
    icd = bus_checks.used_by(settings, load())
    if unknown := [one for one in role or () if one not in icd.roles]:
        raise ConfigError(f"--role: expected one of {', '.join(icd.roles)}, got {unknown[0]!r:.100}")
    try:
        findings = [*_look(icd, settings, role or [])]
    except BusError as error:
        findings = [Finding(UNKNOWN, "brokers", str(error))]
    findings.sort(key=lambda one: RANKS.index(one.level))
    health = overall(findings)
    if as_json:
        content = {"status": health, "exit_code": EXIT_CODES[health], "bootstrap": settings.bootstrap}
        typer.echo(json.dumps(content | {"findings": [one._asdict() for one in findings]}, indent=2))
    else:
        where = escape(f"{settings.bootstrap}, prefix {settings.prefix!r}")
        say(f"[{STYLES[health]}]{health:<8}[/{STYLES[health]}]  the bus at {where}")
        for finding in findings:
            say(line(finding))
    raise typer.Exit(EXIT_CODES[health])


def _look(icd: Icd, settings: Settings, roles: list[str]) -> Iterator[Finding]:
    connection = Connection(settings)
    cluster = brokers.describe_cluster(connection)
    about = f"cluster {cluster.id}: {', '.join(sorted(cluster.brokers))}"
    yield Finding(NOTE, "brokers", about)
    yield from bus_checks.judge_features(cluster.apis)
    yield from bus_checks.judge_encryption(settings.kafka, cluster.brokers)
    states = brokers.describe_states(connection, icd.topics)
    seen = {name: state for name, state in states.items() if isinstance(state, TopicState)}
    yield from _topics(connection, icd, settings, seen, {k: v for k, v in states.items() if isinstance(v, str)})
    rights = {name: state.rights for name, state in seen.items()}
    for role in roles:
        yield from bus_checks.judge_rights(role, bus_checks.needs_of(icd, role), rights, connection.prefix)
    ahead, findings = _clocks(connection)
    yield from findings
    now = connection.clock.now_us() - as_duration(ahead)
    for worker in (worker for one in manifests() for worker in one.workers):
        name = icd.roles[worker.name].group
        try:
            group = brokers.describe_group(connection, name)
        except BusError as error:
            yield Finding(UNKNOWN, f"group {name}", str(error), remedy_of(error))
            continue
        yield bus_checks.describe_lag(name, group)
        yield from bus_checks.judge_lag(icd, name, group, now)
        if worker.name in roles and "READ" not in group.rights:
            text = f"this principal lacks READ on the group {connection.prefix}{name}"
            yield Finding(FAILED, f"rights of {worker.name}", text, "kafka-acls.sh --add --operation Read --group ...")


def remedy_of(error: BusError) -> str:
    """Return what to do about a question about a group that failed."""
    if lacks_right(error):
        return "give this principal Describe on the group"
    return "ask again in a minute: the coordinator of the group is starting, or moves to another broker"


def _topics(
    connection: Connection, icd: Icd, settings: Settings, seen: Mapping[str, TopicState], absent: Mapping[str, str]
) -> Iterator[Finding]:
    differing, must_confirm = dict[str, list[str]](), dict[str, int]()
    try:
        found = brokers.inspect_topics(connection, seen)
    except BusError as error:
        yield Finding(UNKNOWN, "settings of topics", str(error), "give this principal DescribeConfigs on them")
    else:
        replicas = settings.topic_replicas
        differing, of_replay = (
            {name: [*differences(topics[name], one, replicas)] for name, one in found.items()}
            for topics in (icd.topics, replay_topics(icd))
        )
        if settings.replay:
            differing = of_replay
        elif found and not any(of_replay.values()):
            do = "set SDP_REPLAY=true for all that shows it, or choose another SDP_TOPIC_PREFIX"
            yield Finding(FAILED, "topics", "a replay of an archive has made them", do)
            differing = {}
        must_confirm = {name: int(one.settings.get(_MIN_INSYNC) or 1) for name, one in found.items()}
    yield from bus_checks.judge_topics(connection.prefix, absent, differing)
    yield from bus_checks.judge_replicas(
        {name: (one.leaderless, one.replicas, one.in_sync, must_confirm.get(name, 1)) for name, one in seen.items()}
    )
    if not absent and not any(differing.values()) and differing:
        yield Finding(
            NOTE, "topics", f"all {len(differing)} in use are as the ICD says; producers wait for all in-sync replicas"
        )


def _clocks(connection: Connection) -> tuple[float, list[Finding]]:
    """Return the difference of our clock to the broker's [s], and the findings about clocks and processes."""
    try:
        ours = _own_clock(connection)
        heard = _heard(connection)
    except BusError as error:
        return 0.0, [Finding(UNKNOWN, "clocks", str(error))]
    if ours is None:
        text = f"no process gave a sign of life within {_CLOCK_WAIT:g} s, by which the broker's clock would be known"
        return 0.0, [Finding(UNKNOWN, "clocks", text, "start the deployment, then check again")]
    return ours, [*bus_checks.judge_clocks({"this host": ours, **_other_clocks(heard)}), *processes(heard)]


def _own_clock(connection: Connection) -> float | None:
    """Wait for a new heartbeat: its broker's time is between two readings of our clock."""
    clock, topic = connection.clock, heartbeats.TOPIC
    began, before = clock.monotonic(), admin.find_range(connection, topic)
    looked = clock.now_us()
    while clock.monotonic() - began < _CLOCK_WAIT:
        ranges = admin.find_range(connection, topic)
        now = clock.now_us()
        # A broker that is just being lost may have none of the new records.
        if ranges != before and (found := admin.newest_records(connection, topic, 1)):
            newest = max(record.timestamp_us for record in found)
            # Within these bounds nothing is certain; beyond them the clocks surely differ.
            return as_seconds(max(NOTHING, looked - newest) or min(NOTHING, now - newest))
        looked = now
    return None


def _other_clocks(heard: Iterable[Heard]) -> dict[str, float]:
    """Return the difference of the clock of each process with heartbeats to the broker's [s]."""
    found: dict[str, list[float]] = {}
    for heartbeat, at in heard:
        found.setdefault(heartbeat.component, []).append(as_seconds(heartbeat.time - at))
    # A delayed one looks late, but never ahead.
    return {name: max(ahead) for name, ahead in found.items()}


def _heard(connection: Connection) -> list[Heard]:
    records = admin.newest_records(connection, heartbeats.TOPIC, _HEARD)
    decoded = ((decode_heartbeat(record.value), record.timestamp_us) for record in records)
    return [Heard(one, at) for one, at in decoded if isinstance(one, HeartbeatMessage)]


def processes(heard: Iterable[Heard]) -> Iterator[Finding]:
    """Return the hosts of the facade's processes that are alive, and since when each runs or stands by."""
    last = {(one.heartbeat.component, one.heartbeat.incarnation): one for one in sorted(heard, key=lambda one: one.at)}
    now = max((one.at for one in last.values()), default=NEVER)
    found: dict[str, list[str]] = {}
    for (component, incarnation), (heartbeat, at) in last.items():
        if heartbeat.role == "controller" or heartbeat.stopping or now - at > heartbeats.SILENT:
            continue
        name, does = component.removesuffix(heartbeats.STANDBY), "runs"
        if name != component:
            does = "stands by"
        host = heartbeats.host_of(incarnation) or "a host that its release does not tell"
        began = heartbeats.began(incarnation)
        since = f" since {utc_seconds(as_time(began))}" if began else ""
        found.setdefault(name, []).append(f"{does} on {host}{since}")
    for name, texts in sorted(found.items()):
        yield Finding(NOTE, name, "; ".join(sorted(texts)))
