"""The brokers of a deployment. All clients are made here, with the settings that they share."""

import ctypes
import logging
import math
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, cimpl
from confluent_kafka.admin import AdminClient

from facade.kernel.bus.kafka.client_settings import settings_of
from facade.kernel.bus.port import BusHealth, Headers, PartitionColumns, Record
from facade.kernel.bus.signatures import UNSIGNED, Signatures, signed_topics
from facade.kernel.clock import Clock, SystemClock, from_ms
from facade.kernel.config import HIDDEN, Settings, is_secret
from facade.kernel.errors import ConfigError
from facade.kernel.icd.load import load
from facade.kernel.names import PROGRAM
from facade.kernel.recent import Bounded


def refusals(properties: Mapping[str, str]) -> Iterator[str]:
    """Return the properties that the client refuses, or the refusal of all together; without secrets."""
    whole = _refusal(properties)
    if not whole:
        return
    # A property that needs another one is refused by itself as well. It counts only where the reason has its own name.
    alone = {name: _refusal({name: value}) for name, value in properties.items()}
    named = {name: text for name, text in alone.items() if f'"{name}"' in text}
    for name, text in (named or {"all together": whole}).items():
        for secret in (value for key, value in properties.items() if is_secret(key) and value):
            text = text.replace(secret, HIDDEN)
        yield f"kafka: {name}: expected what librdkafka takes, got: {text}"


def require_usable(properties: Mapping[str, str]) -> None:
    """Raise an error if the client refuses properties.

    Raises
    ------
    ConfigError
        It refuses one; the message names each.
    """
    if properties and (wrong := list(refusals(properties))):
        raise ConfigError(f"settings: {'; '.join(wrong)}; see all of them with `{PROGRAM} config check`")


def _refusal(properties: Mapping[str, str]) -> str:
    try:
        Producer({**properties, "log_level": 0})
    except KafkaException as error:
        return str(error.args[0].str())
    return ""


_LOG_AGAIN = 60.0
"""Time between two log lines about one error that repeats [s]."""
_VARIES = re.compile(r"\[.*?\]|\(.*?\)|\d+")
"""Parts in which two lines about the same error differ: threads, remarks, numbers."""
_MOST_ERRORS = 200
"""Different errors that are remembered; beyond it the oldest is forgotten, and its next line is logged."""
_SAYS_NOTHING = 3.0
"""A client without statistics for this time has been closed or hangs [s]."""

_KNOWS_A_BROKER = re.compile(r'"source":"(?:configured|learned)"')

_OF_LIBRARY = re.compile(
    r"^\w+://(?=\S+/\w+: )|(?<=\d)/\w+(?=: )|Connect to ipv\d#\S+ failed: | \(after \d+ms in state .*"
)
"""Parts of an error's text that only the library's developers understand."""

UNREADABLE: Final[Headers] = (("unreadable-headers", b""),)
"""Headers of a record of which the client cannot read a header's name."""

_DOWN = {KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._RESOLVE}


def in_words(error: str) -> str:
    """Return an error of Kafka's library for people, such as ``kafka-1:9092: Connection refused``."""
    return _OF_LIBRARY.sub("", error)


class Clients(NamedTuple):
    """Factories of clients: Kafka's library, or a simulation."""

    consumer: Callable[[dict[str, Any]], Consumer] = Consumer
    producer: Callable[[dict[str, Any]], Producer] = Producer
    admin: Callable[[dict[str, Any]], AdminClient] = AdminClient


Client = TypeVar("Client")
KAFKA = Clients()
_ADMINS: dict[object, AdminClient] = {}
"""The admin client of this process, by its settings; see `Connection.admin`."""
_ADMINS_LOCK = threading.Lock()


class Repeats(logging.Filter):
    """Passes one line a minute for each repeating error, with the number of lines that it held back.

    A process has a dozen clients. While a broker is away, they log 20 failed connections a second.
    """

    def __init__(self) -> None:
        super().__init__()
        self._seen: Bounded[str, tuple[float, int]] = Bounded(_MOST_ERRORS)
        """By error: when a line was last passed [Unix s], and the number of lines held back since."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log a line."""
        # The client library gives its facility, the name of the client, and the text.
        parts = record.args if isinstance(record.args, tuple) else ()
        error = _VARIES.sub("", " ".join(str(part) for part in (*parts[:1], *parts[2:])) or record.getMessage())
        passed, held = self._seen.get(error, (-math.inf, 0))
        if record.created - passed < _LOG_AGAIN:
            self._seen[error] = (passed, held + 1)
            return False
        self._seen[error] = (record.created, 0)
        if held:
            record.msg, record.args = f"{record.getMessage()} ({held} more such lines since the last one)", ()
        return True


CLIENT_LOG = logging.getLogger("facade.kernel.bus.kafka.client")
"""Receives the lines of the client library, and the errors of its clients."""
CLIENT_LOG.addFilter(Repeats())


class Connection:
    """The brokers and settings of a deployment. All clients are made here.

    Parameters
    ----------
    settings
        The deployment, from `facade.kernel.config.load_settings`.
    clock, clients
        Replacements of the clock and of Kafka's clients, for tests.

    Raises
    ------
    ConfigError
        librdkafka refuses a property of the settings.
    """

    def __init__(self, settings: Settings, *, clock: Clock | None = None, clients: Clients | None = None) -> None:
        require_usable(settings.kafka)
        self._clients = clients or KAFKA
        self.prefix = settings.prefix
        self.bootstrap = settings.bootstrap
        self.clock = clock or SystemClock()
        self._admin: AdminClient | None = None
        keys = settings.controller_keys
        self.signatures = Signatures(keys, signed_topics(load())) if keys else UNSIGNED
        self._shared = {"bootstrap.servers": settings.bootstrap, **settings.kafka}

    def config(self, health: BusHealth, own: Mapping[str, Any]) -> dict[str, Any]:
        """Return the whole configuration of one client.

        The client's errors and statistics end up in `health`.
        """
        return self._configured(_Link(health, self.clock), own)

    def _configured(self, link: "_Link", own: Mapping[str, Any]) -> dict[str, Any]:
        return {
            **settings_of("every"),
            "stats_cb": self._statistics(link),
            "error_cb": self._errors(link),
            "logger": CLIENT_LOG,
            **self._shared,
            **own,
        }

    def consumer(self, health: BusHealth, own: Mapping[str, Any]) -> Consumer:
        """Open a consumer; see `config`."""
        return self._open(self._clients.consumer, health, own)

    def producer(self, health: BusHealth, own: Mapping[str, Any]) -> Producer:
        """Open a producer; see `config`."""
        return self._open(self._clients.producer, health, own)

    def _open(self, make: Callable[[dict[str, Any]], Client], health: BusHealth, own: Mapping[str, Any]) -> Client:
        link = _Link(health, self.clock)
        client = make(self._configured(link, own))
        if isinstance(client, (Producer, Consumer)):  # a replacement in tests has no handle
            link.address = id(client)
        return client

    def admin(self) -> AdminClient:
        """Return the client for requests about topics and groups: one for the life of the process.

        The library aborts the process if an admin client is thrown away while a request is under way. So all
        connections of a process to the same brokers share it, and it outlives them.
        """
        if self._admin is None:
            same = self._clients.admin, *sorted(self._shared.items())
            with _ADMINS_LOCK:
                if (admin := _ADMINS.get(same)) is None:
                    admin = self._clients.admin(self.config(BusHealth(), settings_of("admin")))
                    if self._clients.admin is AdminClient:
                        _ADMINS[same] = admin
            self._admin = admin
        return self._admin

    def _remind(self, address: int) -> None:
        """Give a client of Kafka's library, by its address, the brokers of the settings again.

        A client whose metadata names no brokers, as from a broker without a controller, forgets the brokers that it
        knew. It may never look for another one (librdkafka issue 5301, seen with 2.16). The library's own remedy is not
        in its Python client. Brokers that the client still knows stay as they are.
        """
        # A client is a Python object head, followed by the library's handle: `Handle` of confluent_kafka.h.
        handle = ctypes.c_void_p.from_address(address + object.__basicsize__)
        ctypes.CDLL(cimpl.__file__).rd_kafka_brokers_add(handle, self._shared["bootstrap.servers"].encode())

    def remind_admin(self) -> None:
        """Give the admin client the brokers of the settings again: it has no statistics that show their loss."""
        if isinstance(admin := self.admin(), AdminClient):
            self._remind(id(admin))

    def topic(self, name: str) -> str:
        """Return the topic's name on the brokers."""
        return self.prefix + name

    def name(self, topic: str) -> str:
        """Return the ICD's name of a topic on the brokers."""
        return topic.removeprefix(self.prefix)

    def note(self, health: BusHealth, text: str) -> None:
        """Record an error for operators; a repeated one is logged once a minute."""
        CLIENT_LOG.warning("kafka error: %s", text)
        health.last_error, health.last_error_at = text, self.clock.now_us()

    def answered(self, health: BusHealth) -> None:
        """Record that a broker has just answered; the first statistics come a second later."""
        _Link(health, self.clock).tell(up=True)

    def _errors(self, link: "_Link") -> Callable[[KafkaError], None]:
        def on_error(error: KafkaError) -> None:
            if error.code() in _DOWN:
                link.health.down_at = self.clock.monotonic()
                link.tell(up=False)
            self.note(link.health, in_words(error.str()))

        return on_error

    def _statistics(self, link: "_Link") -> Callable[[str], None]:
        def on_statistics(text: str) -> None:
            # A search instead of a parse: the document is large and comes each second.
            link.tell(up='"state":"UP"' in text)
            knew, link.knows_a_broker = link.knows_a_broker, bool(_KNOWS_A_BROKER.search(text))
            if not knew and not link.knows_a_broker and link.address:
                self.note(link.health, "a client of Kafka's library had forgotten all brokers; it was told again")
                self._remind(link.address)

        return on_statistics


class _Link:
    """State of one client of several: the broker is reachable while any of them reaches it.

    The broker closes the connection of an idle client after some minutes, which proves nothing.
    """

    def __init__(self, health: BusHealth, clock: Clock) -> None:
        self.health = health
        self._clock = clock
        self.address = 0
        """Address of the client, without a reference that would keep it alive; statistics come only while it exists."""
        self.knows_a_broker = True
        """As of the last statistics."""

    def tell(self, *, up: bool) -> None:
        now = self._clock.monotonic()
        if up:
            self.health.last_up[self] = now
        else:
            self.health.last_up.pop(self, None)
        # A closed client reports nothing any more.
        self.health.last_up = {link: at for link, at in self.health.last_up.items() if now - at < _SAYS_NOTHING}
        self.health.connected = bool(self.health.last_up)


def to_record(connection: Connection, message: Message) -> Record:
    """Convert a message to a record."""
    return Record(
        topic=connection.name(message.topic()),
        key=message.key(),
        value=message.value(),
        headers=_headers([message])[0],
        partition=message.partition(),
        offset=message.offset(),
        timestamp_us=from_ms(message.timestamp()[1]),
    )


def to_columns(connection: Connection, messages: Sequence[Message]) -> PartitionColumns:
    """Return messages of one partition as columns."""
    return PartitionColumns(
        connection.name(messages[0].topic()),
        messages[0].partition(),
        [*map(Message.offset, messages)],
        [time for _, time in map(Message.timestamp, messages)],
        [*map(Message.key, messages)],
        [*map(Message.value, messages)],
        _headers(messages),
    )


def _headers(messages: Sequence[Message]) -> list[Headers]:
    """Return the headers of messages; if a name is not UTF-8, the mark `UNREADABLE` takes the place of all of them.

    The client (2.16) leaves such a name as a null pointer in the list that it returns, and keeps this list for the next
    call. Whatever touches the name ends the process. The exception comes with a result, which only calls from C check:
    Python's own calls, once they are specialised, go on with the list. So the method is called by `map`, and the list
    is replaced before anybody asks for it again.
    """
    found: list[Any] = []
    left = iter(messages)
    while len(found) < len(messages):
        try:
            found.extend(map(Message.headers, left))
        except (SystemError, UnicodeDecodeError):
            messages[len(found)].set_headers([*UNREADABLE])
            found.append(UNREADABLE)
    return [*map(_pairs, found)] if any(found) else [()] * len(found)


def _pairs(headers: Any) -> Headers:
    return tuple((name, b"" if value is None else value) for name, value in headers or ())
