"""Messages of the papers through Kafka, RabbitMQ and ZeroMQ in the same run."""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from facade.infra.ports import HOST, choose_port
from facade.infra.processes import Process
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.port import BusHealth
from facade.kernel.errors import InfraError
from facade.kernel.icd.topic_model import Topic
from sdp_facade_lab import gauges
from sdp_facade_lab.bench.report import BarVerdict, BenchOutcome, quantiles, ratios
from sdp_facade_lab.debian import Packages, unpacked_packages
from sdp_facade_lab.deployment import Deployment
from sdp_facade_lab.roles import RoleContext
from sdp_facade_lab.testbed import Testbed

_PACKAGES: Final = Packages(
    name="rabbitmq",
    what="RabbitMQ",
    list=Path(__file__).with_name("rabbitmq-packages.txt"),
    programs=("usr/lib/erlang/bin/erlc",),
    megabytes=34,
    hint="RabbitMQ is unpacked from Debian's packages; elsewhere it is not measured",
)
_STARTED: Final = "Server startup complete"
_STARTS_WITHIN: Final = 120.0


def start_rabbitmq(deployment: Deployment) -> tuple[Process, int]:
    root = unpacked_packages(_PACKAGES, deployment.progress.step).path
    (erts,) = (root / "usr/lib/erlang").glob("erts-*")
    (scripts,) = (root / "usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/sbin")
    folder, port = deployment.folder / "rabbitmq", choose_port()
    environment = _environment(folder, erts, port)
    deployment.start("epmd", [f"{erts}/bin/epmd", "-port", environment["ERL_EPMD_PORT"]], **environment)
    server = deployment.start("rabbitmq", [f"{scripts}/rabbitmq-server"], **environment)

    def started() -> bool:
        if not server.is_alive:
            raise InfraError(f"RabbitMQ ended before it was ready; its output ends:\n{server.tail()}")
        return _STARTED in server.log.read_text(errors="replace")

    deployment.progress.demand(started, _STARTS_WITHIN, "RabbitMQ has started")
    return server, port


def rabbitmq_version() -> str:
    """Return the version of the node that was unpacked last."""
    found = list(unpacked_packages(_PACKAGES, lambda _: None).path.glob("usr/lib/rabbitmq/lib/rabbitmq_server-*"))
    return re.sub(r".*-", "", found[0].name) if found else "?"


def _environment(folder: Path, erts: Path, port: int) -> dict[str, Any]:
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    (folder / "rabbitmq.conf").touch()
    (folder / "plugins").write_text("[].\n")
    # Debian's own `erl` looks for Erlang in /usr alone.
    erl = folder / "bin" / "erl"
    erl.write_text(
        f'#!/bin/sh\nexport ROOTDIR="{erts.parent}" BINDIR="{erts}/bin" EMU=beam PROGNAME=erl\n'
        f'exec "{erts}/bin/erlexec" "$@"\n'
    )
    erl.chmod(0o755)
    return {
        "PATH": f"{folder}/bin:{erts}/bin:{os.environ.get('PATH', os.defpath)}",
        "HOME": str(folder),  # of the cookie
        "ERL_EPMD_PORT": str(choose_port()),
        "ERL_EPMD_ADDRESS": HOST,
        "RUNNING_UNDER_SYSTEMD": "1",  # no shell between us and the process
        # A scheduler without work sleeps: else the processor time of waiting would count for messages.
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none +sbwtdcpu none +sbwtdio none",
        "RABBITMQ_NODENAME": "bench@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": HOST,
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(choose_port()),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
        "RABBITMQ_CONF_ENV_FILE": str(folder / "env"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
    }


SIZE: Final = 32
"""Of a message, as in SDP memo 052, 12.2 and 12.3 [bytes]."""
_WAIT: Final = 0.05
"""Longest wait for messages [s]."""
_STALLED: Final = 60.0
"""Time without a message after which a receiver gives up [s]."""
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
    """Topic or queue of the answers; empty: there are none."""


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """What a sender or a receiver did."""

    messages: int
    began: float
    """[Unix s]."""
    ended: float


class BrokerLink(Protocol):
    """One end of a way."""

    def send(self, value: bytes) -> None:
        """Send a message; may keep it for a batch."""

    def flush(self) -> None:
        """Return when all has left, or is acknowledged where that is asked for."""

    def take(self) -> int:
        """Return how many messages have come; waits for the first one, but not for ever."""


def send(context: RoleContext, *, way: dict[str, Any], messages: int) -> Moved:
    link, clock = _link(context, msgspec.convert(way, Way)), context.clock
    _await_release(context)
    began, value = clock.now(), bytes(SIZE)
    for _ in range(messages):
        link.send(value)
    link.flush()
    return Moved(messages=messages, began=began, ended=clock.now())


def receive(context: RoleContext, *, way: dict[str, Any], messages: int) -> Moved:
    link, clock = _link(context, msgspec.convert(way, Way), receives=True), context.clock
    context.announce()
    began = clock.now()
    _take(context, link, messages)
    return Moved(messages=messages, began=began, ended=clock.now())


def answer(context: RoleContext, *, way: dict[str, Any], messages: int) -> int:
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


def _take(context: RoleContext, link: BrokerLink, messages: int) -> None:
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


def _link(context: RoleContext, way: Way, *, receives: bool = False) -> BrokerLink:
    kinds: dict[str, Callable[..., BrokerLink]] = {"kafka": _Kafka, "rabbitmq": _RabbitMq, "zeromq": _ZeroMq}
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


KAFKA, DURABLE, TRANSIENT, ZEROMQ = "Kafka", "RabbitMQ, durable", "RabbitMQ, not durable", "ZeroMQ"
_SENDERS = {KAFKA: 2, DURABLE: 2, TRANSIENT: 2, ZEROMQ: 3}
"""As in the memo."""
_MESSAGES = {KAFKA: 600_000, DURABLE: 60_000, TRANSIENT: 60_000, ZEROMQ: 600_000}
"""In one run, of all senders together: seconds of each."""
_ROUNDS = 3
ALONE = ".alone"
"""What the names end with of topics and queues on which one message follows the other."""
_TOPIC = Topic(description="Messages.", key="none", partitions=1, cleanup="delete", retention=3600.0, qos="bulk")


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """How messages went in one run."""

    messages: int
    seconds: float
    """From the first message sent to the last one received."""
    broker: float
    """Processor time [s]; 0: there is none."""

    @property
    def rate(self) -> float:
        return self.messages / self.seconds


def brokers(testbed: Testbed, *, quick: bool) -> BenchOutcome:
    if lacking := [name for name in ("pika", "zmq") if find_spec(name) is None]:
        raise InfraError(f"{', '.join(lacking)} not installed; expected the extra `bench`: pip install -e '.[bench]'")
    part, asked = (5, 300) if quick else (1, 2000)
    found: list[dict[str, Run]] = []
    halves: dict[str, list[float]] = {}
    with testbed.deployment("brokers") as deployment:
        server, port = start_rabbitmq(deployment)
        pids = {KAFKA: deployment.broker.pid, DURABLE: server.pid, TRANSIENT: server.pid, ZEROMQ: 0}
        for number in range(_ROUNDS):
            ways = _ways(deployment, port, f"{number}")
            found.append({what: _run(deployment, way, what, part, pids[what]) for what, way in ways.items()})
            for what, way in ways.items():
                halves.setdefault(what, []).extend(_latency(deployment, way, asked))
            rates = ", ".join(f"{what} {run.rate:,.0f}/s" for what, run in found[-1].items())
            testbed.progress.step(f"  round {number + 1} of {_ROUNDS}: {rates}")
    return BenchOutcome(
        what=f"messages of {SIZE} B over Kafka, RabbitMQ {rabbitmq_version()} and ZeroMQ",
        verdicts=tuple(verdicts(found, halves)),
    )


def verdicts(found: list[dict[str, Run]], halves: Mapping[str, list[float]]) -> Iterator[BarVerdict]:
    for what in found[0]:
        if what != KAFKA:
            rate = ratios((one[KAFKA].rate, one[what].rate) for one in found)
            yield BarVerdict(f"Kafka / {what}, messages/s", str(rate))
        if what != KAFKA and all(one[what].broker for one in found):
            used = ratios((_per_core(one[KAFKA]), _per_core(one[what])) for one in found)
            yield BarVerdict(f"Kafka / {what}, messages per second of the broker's core", str(used))
    for what, each in halves.items():
        spread = quantiles(each)
        text = spread.text(1e6, "µs") if spread else "-"
        yield BarVerdict(f"one way, {what}", text)


def _per_core(run: Run) -> float:
    return run.messages / run.broker


def _ways(deployment: Deployment, port: int, name: str) -> dict[str, Way]:
    def way(what: str, system: str, **own: Any) -> Way:
        return Way(system=system, there=f"{what}.there.{name}", back=f"{what}.back.{name}", **own)

    kafka = way("kafka", "kafka")
    topics = [f"{one}{end}" for one in (kafka.there, kafka.back) for end in ("", ALONE)]
    deployment.create_topics(dict.fromkeys(topics, _TOPIC))
    return {
        KAFKA: kafka,
        DURABLE: way("durable", "rabbitmq", address=str(port)),
        TRANSIENT: way("passing", "rabbitmq", durable=False, address=str(port)),
        ZEROMQ: way("zeromq", "zeromq", address=f"tcp://127.0.0.1:{choose_port()}"),
    }


def _run(deployment: Deployment, way: Way, what: str, part: int, pid: int) -> Run:
    one_way = msgspec.structs.replace(way, back="")
    senders = _SENDERS[what]
    each = _MESSAGES[what] // part // senders
    task: dict[str, Any] = {"way": msgspec.to_builtins(one_way)}
    receiver = deployment.play(receive, ends=True, messages=each * senders, **task)
    deployment.await_ready(receiver)
    roles = [deployment.play(send, name=f"send-{n}", ends=True, messages=each, **task) for n in range(senders)]
    for role in roles:
        deployment.await_ready(role)
    broker = gauges.cpu(pid) if pid else 0.0
    for role in roles:
        role.release()
    sent = [deployment.result(role, Moved) for role in roles]
    received = deployment.result(receiver, Moved)
    return Run(
        messages=received.messages,
        seconds=received.ended - min(one.began for one in sent),
        broker=gauges.cpu(pid) - broker if pid else 0.0,
    )


def _latency(deployment: Deployment, way: Way, asked: int) -> list[float]:
    own = msgspec.structs.replace(way, there=f"{way.there}{ALONE}", back=f"{way.back}{ALONE}")
    task: dict[str, Any] = {"way": msgspec.to_builtins(own), "messages": asked}
    answering = deployment.play(answer, ends=True, **task)
    deployment.await_ready(answering)
    asking = deployment.play(ask, ends=True, **task)
    deployment.await_ready(asking)
    asking.release()
    halves = deployment.result(asking, list[float])
    deployment.result(answering, int)
    return halves
