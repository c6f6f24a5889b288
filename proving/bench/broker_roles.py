"""What the processes of the measurement `brokers` do: send, receive and answer over Kafka, RabbitMQ or ZeroMQ."""

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, Protocol

import msgspec

from facade.bus.kafka.connection import Connection
from facade.bus.port import BusHealth
from facade.errors import InfraError
from proving import gauges
from proving.roles import RoleContext

SIZE: Final = 32
"""Of a message, as in SDP memo 052, 12.2 and 12.3 [bytes]."""
_WAIT: Final = 0.05
"""Longest wait for messages [s]."""
_STALLED: Final = 60.0
"""Without a message for so long, a receiver gives up [s]."""
_ACK_EACH: Final = 5000
"""Messages that RabbitMQ is told of together, as in the memo."""
_PREFETCH: Final = 20_000


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """How messages go from one process to another."""

    system: str
    """``kafka``, ``rabbitmq`` or ``zeromq``."""
    durable: bool = True
    """Of RabbitMQ: whether a message is written to the disk."""
    address: str = ""
    """Of ZeroMQ's socket, or the port of RabbitMQ."""
    there: str
    """Topic or queue of the messages."""
    back: str = ""
    """That of answers; empty: there are none."""


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """What a sender or a receiver did."""

    messages: int
    began: float
    """[Unix s]."""
    ended: float
    cpu: float
    """[s]."""


class Link(Protocol):
    """One end of a way."""

    def send(self, value: bytes) -> None:
        """Send a message; may keep it for a batch."""

    def flush(self) -> None:
        """Return when all has left, or is acknowledged where that is asked for."""

    def take(self) -> int:
        """Return how many messages have come; waits for the first one, but not for ever."""


def send(context: RoleContext, *, way: dict[str, Any], messages: int) -> Moved:
    """Send as fast as possible."""
    link, clock = _link(context, msgspec.convert(way, Way)), context.clock
    _await_release(context)
    cpu, began, value = gauges.own_cpu(), clock.now(), bytes(SIZE)
    for _ in range(messages):
        link.send(value)
    link.flush()
    return Moved(messages=messages, began=began, ended=clock.now(), cpu=gauges.own_cpu() - cpu)


def receive(context: RoleContext, *, way: dict[str, Any], messages: int) -> Moved:
    """Receive until all is there."""
    link, clock = _link(context, msgspec.convert(way, Way), receives=True), context.clock
    context.announce()
    cpu, began = gauges.own_cpu(), clock.now()
    _take(context, link, messages)
    return Moved(messages=messages, began=began, ended=clock.now(), cpu=gauges.own_cpu() - cpu)


def answer(context: RoleContext, *, way: dict[str, Any], messages: int) -> int:
    """Send each message back."""
    link = _link(context, msgspec.convert(way, Way), receives=True)
    context.announce()
    for _ in range(messages):
        _take(context, link, 1)
        link.send(bytes(SIZE))
    link.flush()
    return messages


def ask(context: RoleContext, *, way: dict[str, Any], messages: int) -> list[float]:
    """Send one message after the other, each when the answer to the one before is there; return half of each time."""
    chosen = msgspec.convert(way, Way)
    link, clock = _link(context, msgspec.structs.replace(chosen, there=chosen.back, back=chosen.there)), context.clock
    _await_release(context)
    halves = []
    for _ in range(messages):
        began = clock.monotonic()
        link.send(bytes(SIZE))
        _take(context, link, 1)
        halves.append((clock.monotonic() - began) / 2)
    return halves


def _take(context: RoleContext, link: Link, messages: int) -> None:
    clock, left = context.clock, messages
    limit = clock.monotonic() + _STALLED
    while left > 0:
        if taken := link.take():
            left, limit = left - taken, clock.monotonic() + _STALLED
        elif clock.monotonic() > limit:
            raise InfraError(f"expected {messages:,} messages, got {messages - left:,} and none for {_STALLED:g} s")


def _await_release(context: RoleContext) -> None:
    context.announce()
    while not context.released:
        context.clock.sleep(0.005)


def _link(context: RoleContext, way: Way, *, receives: bool = False) -> Link:
    kinds: dict[str, Callable[..., Link]] = {"kafka": _Kafka, "rabbitmq": _RabbitMq, "zeromq": _ZeroMq}
    return kinds[way.system](context, way, receives)


def _from_and_to(way: Way, receives: bool) -> tuple[str, str]:
    """Return from where messages come, and where they go, as seen from one end; empty: none do."""
    if way.back:
        return way.there, way.back
    return (way.there, "") if receives else ("", way.there)


class _Kafka:
    def __init__(self, context: RoleContext, way: Way, receives: bool) -> None:
        connection = Connection(context.settings, clock=context.clock)
        source, target = _from_and_to(way, receives)
        self._consumer, self._target = None, connection.topic(target)
        if target:
            # A message that is waited for leaves at once, one of many waits for the others of its batch.
            own = {"acks": "all", "linger.ms": 0 if way.back else 5, "queue.buffering.max.messages": 500_000}
            self._producer = connection.producer(BusHealth(), own)
        if source:
            own = {"group.id": connection.topic(source), "enable.auto.commit": False, "auto.offset.reset": "earliest"}
            self._consumer = connection.consumer(BusHealth(), own)
            self._consumer.subscribe([connection.topic(source)])
            while not self._consumer.assignment():
                self._consumer.poll(_WAIT)  # nothing is sent before
            self._most = 1 if way.back else 10_000

    def send(self, value: bytes) -> None:
        while True:
            try:
                self._producer.produce(self._target, value)
            except BufferError:
                self._producer.poll(_WAIT)
            else:
                return

    def flush(self) -> None:
        if left := self._producer.flush(_STALLED):
            raise InfraError(f"{left:,} messages are not acknowledged")

    def take(self) -> int:
        assert self._consumer is not None
        return len([one for one in self._consumer.consume(self._most, _WAIT) if one.error() is None])


class _RabbitMq:
    def __init__(self, context: RoleContext, way: Way, receives: bool) -> None:
        import pika  # of the extra `bench`

        source, self._target = _from_and_to(way, receives)
        self._connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", int(way.address)))
        self._channel = self._connection.channel()
        self._each = 1 if way.back else _ACK_EACH
        self._taken = self._waiting = self._newest = 0
        for name in filter(None, (source, self._target)):
            self._channel.queue_declare(name, durable=way.durable)
        mode = pika.DeliveryMode.Persistent if way.durable else pika.DeliveryMode.Transient
        self._properties = pika.BasicProperties(delivery_mode=mode.value)
        if source:
            self._channel.basic_qos(prefetch_count=_PREFETCH)
            self._channel.basic_consume(source, self._on_message)

    def _on_message(self, _channel: object, method: Any, _properties: object, _body: bytes) -> None:
        self._taken += 1
        self._newest = method.delivery_tag

    def send(self, value: bytes) -> None:
        self._channel.basic_publish("", self._target, value, self._properties)

    def flush(self) -> None:
        # Without confirmations, as in the memo: an answer of the node says that it has read all before.
        self._channel.queue_declare(self._target, passive=True)

    def take(self) -> int:
        before = self._taken
        self._connection.process_data_events(_WAIT)
        taken = self._taken - before
        self._waiting += taken
        if self._waiting >= self._each or (self._waiting and not taken):
            self._channel.basic_ack(self._newest, multiple=True)
            self._waiting = 0
        return taken


class _ZeroMq:
    """PUSH and PULL for many messages, REQ and REP for one after the other, as libzmq's own tools."""

    def __init__(self, context: RoleContext, way: Way, receives: bool) -> None:
        zmq: Any = import_module("zmq")  # of the extra `bench`
        self._wait, self._again, self._now = round(_WAIT * 1000), zmq.Again, zmq.NOBLOCK
        kind = (zmq.REP if receives else zmq.REQ) if way.back else (zmq.PULL if receives else zmq.PUSH)
        self._single = bool(way.back)
        self._context = zmq.Context()
        self._socket: Any = self._context.socket(kind)
        self._socket.setsockopt(zmq.LINGER, round(_STALLED * 1000))
        if receives:
            self._socket.bind(way.address)
        else:
            self._socket.connect(way.address)

    def send(self, value: bytes) -> None:
        self._socket.send(value)

    def flush(self) -> None:
        self._socket.close()
        self._context.term()  # waits until all has left

    def take(self) -> int:
        if not self._socket.poll(self._wait):
            return 0
        self._socket.recv()
        taken = 1
        try:
            while not self._single:
                self._socket.recv(self._now)
                taken += 1
        except self._again:
            pass
        return taken
