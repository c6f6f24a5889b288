"""All settings of our Kafka clients, in one table, each with its reason.

`TABLE` has a section for each kind of client, and `settings_of` puts the sections of one kind together. Names of
clients and groups, and times that depend on the caller, are added where a client is opened. A site adds its own, such
as the login (`facade.kernel.config.Settings.kafka`), which override the section `every`.

A row whose value is the library's default is a decision as well: it says why the default is kept. Values are in the
units of the names. A test compares the defaults with those of the installed library.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from facade.kernel.bus.kafka import timeouts

__all__ = ["IDLE", "TABLE", "Setting", "settings_of"]

IDLE: Final = timeouts.STEP
"""Time without traffic after which a transactional producer closes a connection [s]."""


class Setting(NamedTuple):
    """A property of a Kafka client."""

    name: str
    default: object
    """Value of the library; None: it has none."""
    value: Any
    reason: str


_NO_COMMIT = Setting("enable.auto.commit", True, False, "Where a reader continues is part of its own transaction.")
_ANSWER = Setting(
    "socket.timeout.ms", 60_000, timeouts.ANSWER_MS, "A broker that hangs is given up, and another one is asked."
)
_EOF = Setting("enable.partition.eof", False, True, "The end of a partition is known without asking for it.")
_ALL = Setting("isolation.level", "read_committed", "read_uncommitted", "Records of open transactions count as well.")
_LARGEST = Setting(
    "message.max.bytes", 1_000_000, 16_777_216, "The ICD limits the records of each topic; brokers enforce it."
)
_QUEUED_RECORDS = Setting(
    "queue.buffering.max.messages", 100_000, 1_000_000, "Bytes are the bound: small records would fill the queue first."
)
_QUIET = Setting("statistics.interval.ms", 0, 0, "It only asks; an error says that brokers are away.")
_MURMUR = Setting(
    "partitioner",
    "consistent_random",
    "murmur2_random",
    "As Java clients choose: a key is on the same partition, whichever client writes it. The default also puts the keys"
    " 0 to 3 on the same one of two partitions, so that half of the workers idle.",
)
_LEADERS = Setting(
    "topic.metadata.refresh.interval.ms",
    300_000,
    timeouts.LEADERS_MS,
    "A leader that hangs keeps its connections, so only new metadata names its successor.",
)
_ACKS = Setting("acks", -1, "all", "A record counts once all in-sync replicas have it.")
_IDEMPOTENT = Setting("enable.idempotence", False, True, "A record that is sent again is on the log once, in order.")

TABLE: Final[Mapping[str, tuple[Setting, ...]]] = {
    "every": (
        Setting("reconnect.backoff.ms", 100, 100, "A broker that restarts is there again after seconds."),
        Setting("reconnect.backoff.max.ms", 10_000, 1000, "Nobody waits 10 s for a broker that is back."),
        Setting("socket.keepalive.enable", False, True, "A connection that a firewall dropped is noticed."),
        Setting("log.connection.close", True, False, "Brokers close idle connections; a lost broker has other lines."),
        Setting("statistics.interval.ms", 0, 1000, "They show within a second whether a broker is connected."),
    ),
    "admin": (
        _QUIET,
        Setting(
            "enable.sparse.connections",
            True,
            False,
            "The client asks the controller about topics. After the controller is killed, a client that connects on"
            " demand retries it without a pause, as each failure ends its back-off: 0.8 of a core.",
        ),
        Setting(
            "topic.metadata.refresh.interval.ms",
            300_000,
            5000,
            "Only new metadata names another controller. The client waits for 10 s at least.",
        ),
    ),
    "asker": (_NO_COMMIT, _ANSWER, _ALL, _QUIET),
    # All that consume
    "consumer": (
        _NO_COMMIT,
        _ANSWER,
        Setting(
            "fetch.queue.backoff.ms",
            1000,
            2,
            "The client pauses its fetches for this time when its queue is full, also if the queue is empty again a"
            " millisecond later: with the default, a reader that is faster than the network stands still for most of a"
            " second.",
        ),
        Setting("fetch.error.backoff.ms", 500, 500, "A leader takes seconds to move."),
    ),
    "reader": (
        _EOF,
        _LEADERS,
        Setting("queued.max.messages.kbytes", 65_536, 32_768, "Memory of a device server, for each of its readers."),
        Setting("fetch.message.max.bytes", 1_048_576, 4_194_304, "Large batches and tables need fewer requests."),
    ),
    "at once": (
        Setting("fetch.min.bytes", 1, 1, "A record comes at once."),
        Setting("fetch.wait.max.ms", 500, 100, "The end of a topic is known 100 ms later."),
    ),
    "together": (
        Setting("fetch.min.bytes", 1, 65_536, "One answer for many records saves broker and reader most work."),
        Setting("fetch.wait.max.ms", 500, 200, "No record waits longer for others."),
    ),
    "range": (
        _EOF,
        Setting("auto.offset.reset", "largest", "earliest", "Records that retention removed are skipped."),
        Setting("fetch.min.bytes", 1, 1, "A range may end with its only record."),
        Setting("fetch.wait.max.ms", 500, 10, "The end of a range is known 10 ms later."),
        Setting("queued.max.messages.kbytes", 65_536, 32_768, "Memory of a device server, for each of its reads."),
    ),
    # Members of groups
    "member": (
        Setting("isolation.level", "read_committed", "read_committed", "Only committed records count."),
        Setting(
            "session.timeout.ms",
            45_000,
            round(timeouts.SESSION * 1000),
            "Others take the partitions of a member that does not come back within this time.",
        ),
        Setting(
            "heartbeat.interval.ms",
            3000,
            250,
            "The answers announce a rebalance to a member; no member gets the moved partitions before the last one"
            " knows of it.",
        ),
    ),
    "partition holder": (
        Setting(
            "partition.assignment.strategy",
            "range,roundrobin",
            "cooperative-sticky",
            "A member that joins or leaves stops no partition but those that move.",
        ),
        Setting("queued.max.messages.kbytes", 65_536, 16_384, "Memory: tables of 100 MB have a bound of their own."),
        Setting("fetch.wait.max.ms", 500, 100, "An empty answer costs little."),
        Setting(
            "topic.metadata.refresh.interval.ms",
            300_000,
            10_000,
            "A topic created after the start is found at the next refresh.",
        ),
    ),
    "worker": (
        Setting("auto.offset.reset", "largest", "error", "A position that is not on the log is compared again."),
        _EOF,
        Setting("statistics.interval.ms", 0, 250, "Otherwise heartbeats are up to 0.5 s late."),
        Setting("queued.min.messages", 100_000, 50_000, "A tenth of a second of one core's work."),
        Setting("queued.max.messages.kbytes", 65_536, 49_152, "More costs memory and processor cache."),
        Setting("fetch.message.max.bytes", 1_048_576, 4_194_304, "Of each partition: fewer requests."),
        Setting("fetch.max.bytes", 52_428_800, 20_971_520, "Of all partitions: within the queue."),
        Setting("fetch.min.bytes", 1, 65_536, "At low rates, one answer for all records within half a transaction."),
        Setting("fetch.wait.max.ms", 500, 50, "Half of a transaction."),
        Setting(
            "topic.metadata.refresh.interval.ms",
            300_000,
            500,
            "Topics and partitions created after the start are found at the next refresh.",
        ),
    ),
    # Producers
    "durable": (
        _MURMUR,
        _LARGEST,
        _ACKS,
        _IDEMPOTENT,
        _ANSWER,
        _QUEUED_RECORDS,
        Setting("queue.buffering.max.kbytes", 1_048_576, 262_144, "Memory of a device server."),
    ),
    "stream": (
        _MURMUR,
        _LARGEST,
        _ACKS,
        _IDEMPOTENT,
        _ANSWER,
        _QUEUED_RECORDS,
        Setting("delivery.report.only.error", False, True, "A report for each record would cost more than the record."),
    ),
    "bounded": (
        _MURMUR,
        _LARGEST,
        _ACKS,
        _ANSWER,
        Setting("enable.idempotence", False, False, "The client must not send again what was given up."),
        Setting("retries", 2_147_483_647, 0, "The sender itself tries again, within its bound."),
        _LEADERS,
        Setting(
            "max.in.flight.requests.per.connection",
            1_000_000,
            1,
            "A broker takes the next request of a connection after the answer to the last one. While confirmations take"
            " longer than the time between two heartbeats, as those of brokers that have just started, requests of one"
            " heartbeat each would wait for each other longer and longer, and no command could be given. So what waits"
            " leaves together.",
        ),
    ),
    "transactional": (
        _LARGEST,
        Setting("compression.type", "none", "none", "Topics are uncompressed: brokers would unpack each record."),
        Setting(
            "linger.ms",
            5,
            1000,
            "A commit sends what waits at once, as one request for each partition. Records that left before it would be"
            " on their way while others wait, and an idempotent client with five records of a partition on their way"
            " asks without a pause whether the next may leave: a core for as long as the broker takes to confirm.",
        ),
        Setting(
            "transaction.timeout.ms",
            60_000,
            round(timeouts.TRANSACTION * 1000),
            "The broker aborts a longer transaction, so a killed worker holds up readers for no longer.",
        ),
        Setting("log.connection.close", True, True, "Each closed connection is a line, which `Link` counts."),
        Setting(
            "metadata.recovery.strategy",
            "rebootstrap",
            "none",
            "When all brokers are away, the client would forget them and begin with the bootstrap servers, except for"
            " the group's coordinator: send_offsets_to_transaction waits for the forgotten one, with any time-out."
            " After a lost connection a new producer is made in any case, which begins with the bootstrap servers.",
        ),
        Setting(
            "connections.max.idle.ms",
            0,
            round(IDLE * 1000),
            "If the group's coordinator is a broker that the client has just dropped, as the cluster has lost it,"
            " send_offsets_to_transaction waits until any connection of the client comes or goes, for minutes, and"
            " ignores its time-out (librdkafka issues 5456 and 5511). So connections without traffic are closed: that"
            " wakes it. A connection also counts as idle while a request on it has no answer.",
        ),
    ),
    "single run": (
        _MURMUR,
        _LARGEST,
        _ANSWER,
        Setting(
            "transaction.timeout.ms",
            60_000,
            round(timeouts.COMMAND_TRANSACTION * 1000),
            "The broker aborts a longer transaction. A person waits for this one.",
        ),
    ),
    "placing": (
        _LARGEST,
        _ACKS,
        _IDEMPOTENT,
        Setting("linger.ms", 5, 1, "Each batch is waited for."),
    ),
    "placing together": (
        Setting("transaction.timeout.ms", 60_000, 120_000, "All brokers must confirm thousands of old records."),
    ),
}


def settings_of(*sections: str) -> dict[str, Any]:
    """Return the settings of some sections; those of later ones replace those of earlier ones."""
    return {one.name: one.value for section in sections for one in TABLE[section]}
