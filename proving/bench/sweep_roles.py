"""What the processes of the sweep do: producers and consumers with nothing of ours between them and Kafka's client."""

import gc
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from facade.bus.kafka.connection import Connection
from facade.bus.port import BusHealth
from facade.errors import InfraError
from facade.flows.telemetry.simulator.faults import MICRO, Scenario
from facade.flows.telemetry.simulator.heaps import HeapStream
from proving import gauges
from proving.bench.sweep_report import Large, Sent, Taken, delay_of
from proving.roles import RoleContext

_GC_THRESHOLD = 100_000
_TEXT = 100_000
"""Messages up to this size are cut from the text of notifications, larger ones are floats as in tables [bytes]."""
_POOL, _POOL_MESSAGES = 4_000_000, 1_000
_WAITING = 64_000_000
"""Most bytes that wait in a producer, so that none of them grows old there."""
_STALLED = 60.0
"""Without a message for so long, a consumer gives up [s]: what it lacks is seen in its count."""
_AHEAD_KB = 65_536
"""Most that the members of a group fetch ahead together, as one client by itself does."""
_FLUSH = 120.0
_STAMP = struct.Struct("<d")
_SEGMENT = struct.Struct("<II")
_CLIENT = {"statistics.interval.ms": 0}
_CONSUMER = {
    **_CLIENT,
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
    "fetch.max.bytes": 120_000_000,
    "receive.message.max.bytes": 130_000_000,
}
_PRODUCER = {**_CLIENT, "message.max.bytes": 120_000_000, "queue.buffering.max.kbytes": 1_048_576}


def contents(size: int) -> list[bytes]:
    """Return different messages of one size, which compress as real ones do; see `_TEXT`."""
    count = max(1, min(_POOL_MESSAGES, _POOL // size))
    if size > _TEXT:
        floats = np.random.default_rng(1).standard_normal(count * size // 4 + 1, dtype=np.float32).tobytes()
        return [floats[n * size : (n + 1) * size] for n in range(count)]
    batch = HeapStream(Scenario(nodes=4, rate=127_200.0, seed=1)).take(8_000, 1_800_000_000 * MICRO)
    text = b"\n".join(value for value in batch.values if value is not None)
    step = (len(text) - size) // count
    return [text[n * step : n * step + size] for n in range(count)]


def _block(size: int) -> int:
    """Return how many messages are handed over at once: about a megabyte, at least one."""
    return max(1, min(500, 1_000_000 // size))


def produce(
    context: RoleContext,
    *,
    topic: str,
    size: int,
    seconds: float,
    most: int,
    rate: float,
    one_by_one: bool,
    clients: int,
    own: Mapping[str, Any],
) -> Sent:
    """Send messages until the time is over or there are enough of them; `rate` 0: as fast as the client takes them.

    `rate` and `most` are those of one of the clients, each of which has a thread.
    """
    gc.set_threshold(_GC_THRESHOLD)
    clock, connection = context.clock, Connection(context.settings, clock=context.clock)
    failures: list[str] = []
    name, values = connection.topic(topic), contents(size)
    block, waiting = _block(size), max(2, min(90_000, _WAITING // size))
    blocks = [[{"value": value} for value in values[n : n + block]] for n in range(0, len(values), block)]
    # A client that waits for each message is told of each one.
    told = {**own, "delivery.report.only.error": not one_by_one}
    producers = [_producer(connection, told, failures) for _ in range(clients)]
    totals, calls = list[int](), list[float]()

    def send(producer: Any) -> None:
        begin, sent = clock.monotonic(), 0
        while sent < most and clock.monotonic() < begin + seconds:
            if one_by_one:
                called = clock.monotonic()
                producer.produce(name, values[sent % len(values)])
                while len(producer):
                    producer.poll(0.1)
                calls.append(clock.monotonic() - called)
                sent += 1
            elif rate:
                clock.sleep(max(0.0, begin + sent / rate - clock.monotonic()))
                producer.produce(name, _STAMP.pack(clock.now()) + values[sent % len(values)][_STAMP.size :])
                sent += 1
                producer.poll(0)
            else:
                while len(producer) > waiting - block:
                    producer.poll(0.002)
                sent += producer.produce_batch(name, blocks[sent // block % len(blocks)][: most - sent])
        left = producer.flush(_FLUSH)
        failures.extend([f"{left} messages are not acknowledged"] * (left > 0))
        totals.append(sent)

    _await_release(context)
    cpu, began = gauges.own_cpu(), clock.now()
    _side_by_side(send, producers)
    _check(failures)
    return Sent(
        messages=sum(totals),
        began=began,
        ended=clock.now(),
        cpu=gauges.own_cpu() - cpu,
        peak_mb=gauges.peak_resident(),
        calls=calls,
    )


def _side_by_side(do: Callable[[Any], None], clients: Sequence[Any]) -> None:
    """Do something with each client, each in a thread."""
    threads = [threading.Thread(target=do, args=(one,)) for one in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class _Group:
    """Counts what the members of a consumer group take, each in a thread of its own."""

    def __init__(self, context: RoleContext, partitions: int, total: Path, *, stamped: bool) -> None:
        self._clock, self._context = context.clock, context
        self._partitions, self._total, self._stamped = partitions, total, stamped
        self._lock, self._assigned = threading.Lock(), dict[int, int]()
        self._moved = self._clock.monotonic()
        self._ready = False
        self.taken = self.first = 0
        self.began = self.ended = 0.0
        self.delays: list[float] = []

    @property
    def complete(self) -> bool:
        """Return whether all that was sent is there, or nothing has come for too long."""
        if self._total.exists():
            return self.taken >= int(self._total.read_text()) or self._clock.monotonic() > self._moved + _STALLED
        return self._context.called_off

    def follow(self, consumer: Any, most: int) -> None:
        """Take messages until the group has all of them."""
        while not self.complete:
            # `consume` waits until there are as many as it may take, `poll` only for the first one.
            if self._stamped:
                message = consumer.poll(0.1)
                messages = [message] if message is not None else []
            else:
                messages = consumer.consume(most, 0.05)
            if not self._ready:
                self._note_partitions(id(consumer), len(consumer.assignment()))
            if messages:
                self._take(messages)

    def _take(self, messages: Sequence[Any]) -> None:
        now = self._clock.now()
        if (error := messages[-1].error()) is not None:
            raise InfraError(f"the topic cannot be read: {error.str()}")
        if self._stamped:
            self.delays.append(now - _STAMP.unpack_from(messages[0].value())[0])
        with self._lock:
            if not self.first:
                self.first, self.began = len(messages), now
            self.taken, self.ended, self._moved = self.taken + len(messages), now, self._clock.monotonic()

    def _note_partitions(self, member: int, count: int) -> None:
        with self._lock:
            self._assigned[member] = count
            if sum(self._assigned.values()) == self._partitions:
                self._ready = True
                self._moved = self._clock.monotonic()
                self._context.announce()


def consume(
    context: RoleContext, *, topic: str, group: str, members: int, partitions: int, size: int, total: str, stamped: bool
) -> Taken:
    """Take all messages of a topic; how many that are stands in the file `total` when it is known."""
    gc.set_threshold(_GC_THRESHOLD)
    connection, most = Connection(context.settings, clock=context.clock), max(1, min(10_000, 2_000_000 // size))
    taken = _Group(context, partitions, Path(total), stamped=stamped)
    consumers = [_consumer(connection, topic, group, _AHEAD_KB // members) for _ in range(members)]
    cpu = gauges.own_cpu()
    _side_by_side(lambda one: taken.follow(one, most), consumers)
    found = Taken(
        messages=taken.taken,
        timed=taken.taken - taken.first,
        began=taken.began,
        ended=taken.ended,
        cpu=gauges.own_cpu() - cpu,
        peak_mb=gauges.peak_resident(),
        delay=delay_of(taken.delays),
    )
    for one in consumers:
        one.close()
    return found


def send_large(context: RoleContext, *, topic: str, size: int, whole: int, count: int, own: Mapping[str, Any]) -> Large:
    """Send large messages in segments, each when the one before is acknowledged."""
    clock, connection = context.clock, Connection(context.settings, clock=context.clock)
    failures: list[str] = []
    producer, name = _producer(connection, own, failures), connection.topic(topic)
    content = np.random.default_rng(1).bytes(whole)
    waiting, each = max(2, min(90_000, _WAITING // size)), []
    _await_release(context)
    cpu, begin = gauges.own_cpu(), clock.monotonic()
    for number in range(count):
        began = clock.monotonic()
        for segment in range(-(-whole // size)):
            while len(producer) >= waiting:
                producer.poll(0.002)
            producer.produce(name, _SEGMENT.pack(number, segment) + content[segment * size : (segment + 1) * size])
        _flush(producer, failures)
        each.append(clock.monotonic() - began)
    return _large(context, each, begin, cpu)


def take_large(context: RoleContext, *, topic: str, size: int, whole: int, count: int) -> Large:
    """Put large messages together again from segments that come in any order."""
    clock, connection = context.clock, Connection(context.settings, clock=context.clock)
    consumer = _consumer(connection, topic, "large")
    most = max(1, min(10_000, 2_000_000 // size))
    parts: dict[int, bytearray] = {}
    left, began, each = dict[int, int](), dict[int, float](), list[float]()
    cpu, begin, moved = gauges.own_cpu(), 0.0, clock.monotonic()
    while len(each) < count and clock.monotonic() < moved + _STALLED:
        for message in consumer.consume(most, 0.05):
            moved = clock.monotonic()
            begin = begin or moved
            number, segment = _SEGMENT.unpack_from(message.value())
            if number not in parts:
                parts[number], left[number], began[number] = bytearray(whole), whole, moved
            piece = memoryview(message.value())[_SEGMENT.size :]
            parts[number][segment * size : segment * size + len(piece)] = piece
            left[number] -= len(piece)
            if not left[number]:
                del parts[number]
                each.append(clock.monotonic() - began[number])
    found = _large(context, each, begin, cpu)
    consumer.close()
    return found


def _large(context: RoleContext, each: list[float], begin: float, cpu: float) -> Large:
    seconds = context.clock.monotonic() - begin
    return Large(each=each, seconds=seconds, cpu=gauges.own_cpu() - cpu, peak_mb=gauges.peak_resident())


def _producer(connection: Connection, own: Mapping[str, Any], failures: list[str]) -> Any:
    def on_failure(error: Any, _: Any) -> None:
        if error is not None:
            failures.append(error.str())

    report: dict[str, Any] = {"delivery.report.only.error": True, "on_delivery": on_failure}
    return connection.producer(BusHealth(), {**_PRODUCER, **report, **own})


def _consumer(connection: Connection, topic: str, group: str, ahead_kb: int = _AHEAD_KB) -> Any:
    own = {"group.id": connection.topic(group), "queued.max.messages.kbytes": ahead_kb}
    consumer = connection.consumer(BusHealth(), {**_CONSUMER, **own})
    consumer.subscribe([connection.topic(topic)])
    return consumer


def _flush(producer: Any, failures: Sequence[str]) -> None:
    left = producer.flush(_FLUSH)
    _check([*failures, *[f"{left} messages are not acknowledged"] * (left > 0)])


def _check(failures: Sequence[str]) -> None:
    if failures:
        raise InfraError(f"{len(failures)} messages were refused, or are not acknowledged; the first: {failures[0]}")


def _await_release(context: RoleContext) -> None:
    context.announce()
    while not context.released:
        context.clock.sleep(0.005)
