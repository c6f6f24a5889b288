"""JSON and columnar batches on one topic, on a real broker: exact through kills."""

import json
import random
from collections import Counter

import msgspec
import pytest
from confluent_kafka import Producer

from facade.flows.telemetry.plan import plan
from facade.icd.load import load
from facade.messages import StreamAccount
from tests.conftest import Deploy
from tests.support.columnar import columnar
from tests.support.deployment import CLOCK, Deployment
from tests.support.heaps import heap
from tests.support.summaries import partials
from tests.support.topics import read_all
from tests.support.waiting import HANG, until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
NODES, ROWS, KILLS = 4, 500, 3


class Senders:
    """Ingest nodes, of which each writes batches, with a bad row now and then, and records of JSON in turn."""

    def __init__(self, deployment: Deployment) -> None:
        self._producer = Producer({"bootstrap.servers": deployment.bootstrap, "enable.idempotence": True})
        self._topic = deployment.topic("ingest.heaps")
        self._seq = [0] * NODES
        self.used: Counter[int] = Counter()
        self.bad = self.unreadable = 0

    def send(self, turn: int) -> None:
        now_us = round(CLOCK.now() * 1e6)
        for node in range(NODES):
            first = self._seq[node]
            rows = [heap(node, first + i, time=now_us + i) for i in range(ROWS)]
            self._seq[node] += ROWS
            self.used[node] += ROWS
            if (turn + node) % 3 == 0:
                for row in rows[:20]:
                    self._produce(node, json.dumps(row).encode())
                rows = rows[20:]
            if turn % 2 == 0:
                rows[7]["latency"] = -1.0
                self.used[node] -= 1
                self.bad += 1
            record = columnar(rows)
            self._produce(node, record.value, record.headers)
            if turn % 5 == node:
                self._produce(node, record.value[:-50], record.headers)
                self.unreadable += len(rows)
        assert self._producer.flush(HANG) == 0

    def _produce(self, node: int, value: bytes, headers: tuple[tuple[str, bytes], ...] = ()) -> None:
        self._producer.produce(self._topic, value, str(node).encode(), headers=list(headers))

    def consumed(self) -> int:
        return self.used.total() + self.bad + self.unreadable


def account(deployment: Deployment) -> Counter[str]:
    """Add up what workers have committed about the notifications."""
    found: Counter[str] = Counter()
    for message in read_all(deployment.bootstrap, deployment.topic("accounts")):
        entry = msgspec.json.decode(message.value(), type=StreamAccount)
        if entry.stream == "ingest.heaps":
            found.update({name: getattr(entry, name) for name in ("consumed", "used", "late", "dead_lettered")})
    return found


def test_kills_of_a_worker_change_no_total_of_both_encodings(deploy: Deploy) -> None:
    """Rows, JSON records, bad rows and unreadable batches: each counts once, in the account and in the partials."""
    deployment = deploy(nodes=NODES, prepare=False)
    deployment.create_topics()
    senders, chance = Senders(deployment), random.Random(3)
    worker = deployment.worker()
    for kill in range(KILLS):
        before = account(deployment)["consumed"]
        for turn in range(3):
            senders.send(3 * kill + turn)
        until(lambda before=before: account(deployment)["consumed"] > before, "the worker works")
        for turn in range(3):
            senders.send(3 * kill + turn)
            CLOCK.sleep(chance.uniform(0.0, 0.1))  # how far the worker is at its end is what is random here
        worker.kill()
        worker = deployment.worker()
    until(lambda: account(deployment)["consumed"] >= senders.consumed(), "everything is taken", every=0.5)
    found = account(deployment)
    assert found["consumed"] == senders.consumed()
    assert found["dead_lettered"] == senders.bad + senders.unreadable
    assert found["used"] + found["late"] == senders.used.total()
    counted = Counter[int]()
    messages = read_all(deployment.bootstrap, deployment.topic("ingest.summary"))
    for node, partial in partials([message.value() for message in messages], plan(load(), "ingest.heaps")):
        counted[node] += partial.count
    assert counted == senders.used
    letters = [dict(message.headers()) for message in read_all(deployment.bootstrap, deployment.topic("dead-letters"))]
    assert len([one for one in letters if "dl.row" in one]) == senders.bad
    assert sum(int(one["dl.count"]) for one in letters if "dl.count" in one) == senders.unreadable
