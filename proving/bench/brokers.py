"""Kafka beside RabbitMQ and ZeroMQ: the experiments of SDP memo 052 (12.2.1, 12.2.2, 12.3.1), all in one run.

All clients are in Python, two senders and one receiver as in the memo's test of QPid. pika is written in Python, the
clients of Kafka and ZeroMQ in C: so the processor time of the broker is said too, which the client has no part in.
"""

import statistics
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

import msgspec

from facade.errors import InfraError
from facade.icd.topic_model import Topic
from facade.infra.ports import choose_port
from proving import gauges
from proving.bench import rabbitmq
from proving.bench.broker_roles import SIZE, Moved, Way
from proving.bench.report import Outcome, Verdict, quantiles, ratios
from proving.deployment import Deployment
from proving.testbed import Testbed

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
    clients: float
    """Processor time [s]."""
    broker: float
    """Processor time [s]; 0: there is none."""

    @property
    def rate(self) -> float:
        """Return the messages per second."""
        return self.messages / self.seconds


def brokers(testbed: Testbed, *, quick: bool) -> Outcome:
    """Send the same messages over each, one after the other, again and again."""
    if lacking := [name for name in ("pika", "zmq") if find_spec(name) is None]:
        raise InfraError(f"{', '.join(lacking)} not installed; expected the extra `bench`: pip install -e '.[bench]'")
    part, asked = (5, 300) if quick else (1, 2000)
    found: list[dict[str, Run]] = []
    halves: dict[str, list[float]] = {}
    with testbed.deployment("brokers") as deployment:
        server, port = rabbitmq.start(deployment)
        pids = {KAFKA: deployment.broker.pid, DURABLE: server.pid, TRANSIENT: server.pid, ZEROMQ: 0}
        for number in range(_ROUNDS):
            ways = _ways(deployment, port, f"{number}")
            found.append({what: _run(deployment, way, what, part, pids[what]) for what, way in ways.items()})
            for what, way in ways.items():
                halves.setdefault(what, []).extend(_latency(deployment, way, asked))
            rates = ", ".join(f"{what} {run.rate:,.0f}/s" for what, run in found[-1].items())
            testbed.progress.step(f"  round {number + 1} of {_ROUNDS}: {rates}")
    return Outcome(
        name="brokers",
        what=f"messages of {SIZE} B over Kafka, RabbitMQ {rabbitmq.version()} and ZeroMQ",
        how=(
            *(
                f"{what}: {messages // part:,} messages from {_SENDERS[what]} senders to one receiver"
                for what, messages in _MESSAGES.items()
            ),
            f"{_ROUNDS} rounds, one way after the other; each client a Python process, the broker one node",
            "Kafka: confluent_kafka, acks=all, one partition; RabbitMQ: pika, which sends each message by itself, a"
            " classic queue, no confirmations, an acknowledgement for 5,000 messages; ZeroMQ: pyzmq, PUSH and PULL over"
            " TCP",
            f"delay: half of the time there and back, {asked:,} times a round, one message after the other; ZeroMQ by"
            " REQ and REP",
        ),
        verdicts=tuple(verdicts(found, halves)),
        notes=tuple(notes(found)),
        figures={"rounds": found, "halves": halves},
    )


def verdicts(found: list[dict[str, Run]], halves: Mapping[str, list[float]]) -> Iterator[Verdict]:
    """Set Kafka beside each other way; there is no bar."""
    for what in found[0]:
        if what != KAFKA:
            rate = ratios((one[KAFKA].rate, one[what].rate) for one in found)
            yield Verdict(what=f"Kafka / {what}, messages/s", bar="", found=str(rate))
        if what != KAFKA and all(one[what].broker for one in found):
            used = ratios((_per_core(one[KAFKA]), _per_core(one[what])) for one in found)
            yield Verdict(what=f"Kafka / {what}, messages per second of the broker's core", bar="", found=str(used))
    for what, each in halves.items():
        spread = quantiles(each)
        text = spread.text(1e6, "µs") if spread else "-"
        yield Verdict(what=f"one way, {what}", bar="", found=text)


def notes(found: list[dict[str, Run]]) -> Iterator[str]:
    """Say how fast each way was, and what it took."""
    for what in found[0]:
        runs = [one[what] for one in found]
        rate, clients, broker = (
            statistics.median(pick)
            for pick in (
                [run.rate for run in runs],
                [run.clients / run.messages * 1e6 for run in runs],
                [run.broker / run.messages * 1e6 for run in runs],
            )
        )
        yield f"{what}: {rate:,.0f}/s; processor time of a million: clients {clients:.1f} s, broker {broker:.1f} s"


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
    receiver = deployment.play("broker-receive", ends=True, messages=each * senders, **task)
    deployment.await_ready(receiver)
    roles = [
        deployment.play("broker-send", name=f"broker-send-{n}", ends=True, messages=each, **task)
        for n in range(senders)
    ]
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
        clients=received.cpu + sum(one.cpu for one in sent),
        broker=gauges.cpu(pid) - broker if pid else 0.0,
    )


def _latency(deployment: Deployment, way: Way, asked: int) -> list[float]:
    own = msgspec.structs.replace(way, there=f"{way.there}{ALONE}", back=f"{way.back}{ALONE}")
    task: dict[str, Any] = {"way": msgspec.to_builtins(own), "messages": asked}
    answering = deployment.play("broker-answer", ends=True, **task)
    deployment.await_ready(answering)
    asking = deployment.play("broker-ask", ends=True, **task)
    deployment.await_ready(asking)
    asking.release()
    halves = deployment.result(asking, list[float])
    deployment.result(answering, int)
    return halves
