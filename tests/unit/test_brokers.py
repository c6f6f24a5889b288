"""Kafka beside other brokers: each round is compared with itself, and what has no broker has no figure of one."""

from proving.bench.brokers import DURABLE, KAFKA, TRANSIENT, ZEROMQ, Run, notes, verdicts


def run(rate: float, broker: float) -> Run:
    return Run(messages=1000, seconds=1000 / rate, clients=0.002, broker=broker)


ROUNDS = [
    {KAFKA: run(400.0, 0.001), DURABLE: run(100.0, 0.004), TRANSIENT: run(200.0, 0.002), ZEROMQ: run(800.0, 0.0)},
    # Beside more load all are slower, and the ratios stay.
    {KAFKA: run(40.0, 0.001), DURABLE: run(10.0, 0.004), TRANSIENT: run(20.0, 0.002), ZEROMQ: run(80.0, 0.0)},
]


def test_each_way_is_set_beside_kafka_in_the_same_round() -> None:
    found = {one.what: one.found for one in verdicts(ROUNDS, {ZEROMQ: [0.0001, 0.0002, 0.0003]})}
    assert found == {
        "Kafka / RabbitMQ, durable, messages/s": "4.00 (4.00 to 4.00 of 2 pairs)",
        "Kafka / RabbitMQ, durable, messages per second of the broker's core": "4.00 (4.00 to 4.00 of 2 pairs)",
        "Kafka / RabbitMQ, not durable, messages/s": "2.00 (2.00 to 2.00 of 2 pairs)",
        "Kafka / RabbitMQ, not durable, messages per second of the broker's core": "2.00 (2.00 to 2.00 of 2 pairs)",
        "Kafka / ZeroMQ, messages/s": "0.50 (0.50 to 0.50 of 2 pairs)",
        "one way, ZeroMQ": "p50 200, p99 300, max 300 µs of 3",
    }


def test_what_a_million_messages_take_is_said() -> None:
    assert next(notes(ROUNDS)) == "Kafka: 220/s; processor time of a million: clients 2.0 s, broker 1.0 s"
