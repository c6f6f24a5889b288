"""Transactions and heartbeats beside a network that delays and cuts (KIP-890; Jepsen on Bufstream 0.1)."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from facade.kernel.bus.kafka.bus import KafkaBus
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.transactional_producer import TransactionalProducer
from facade.kernel.bus.kafka.transactions import KafkaTransactionalLog
from facade.kernel.bus.port import Aborted, BusHealth, Record
from facade.kernel.config import Settings
from facade.kernel.runtime.heartbeats import SERVERS, TOPIC, SignOfLife
from tests.support.deployment import Deployment
from tests.support.kafka_proxy import END_TXN, PRODUCE, KafkaProxy
from tests.support.waiting import HANG, until

pytestmark = pytest.mark.kafka
SOURCE, RESULT = "ingest.heaps", "ingest.summary"
_FENCED = {47, 90}
"""What the broker says of an earlier epoch of a producer: INVALID_PRODUCER_EPOCH, PRODUCER_FENCED."""


def nothing() -> None:
    """Happens in the middle of most transactions."""


class Interrupted(TransactionalProducer):
    """Has something happen once, when the first record of a transaction is on its partition and no other one is."""

    meanwhile: Callable[[], None] = staticmethod(nothing)

    def write(self, records: Iterable[Record], *rest: Any) -> None:
        super().write(self._interrupted(records), *rest)

    def _interrupted(self, records: Iterable[Record]) -> Iterator[Record]:
        for record in records:
            yield record
            meanwhile, self.meanwhile = self.meanwhile, nothing
            if meanwhile is not nothing:
                assert self._producer is not None
                self._producer.client.flush(HANG)
                meanwhile()


class Copier:
    """Copies records in transactions, as a worker does."""

    def __init__(self, bootstrap: str, prefix: str) -> None:
        connection = Connection(Settings(bootstrap=bootstrap, prefix=prefix))
        self.log = KafkaTransactionalLog(connection, SOURCE, group="delayed", slot="0", health=BusHealth())
        self.producer = self.log._producer = Interrupted(connection, f"{prefix}delayed-0", BusHealth())

    def copy(self, value: bytes, meanwhile: Callable[[], None] = nothing) -> None:
        """Take a record and write it twice in one transaction, however often it takes."""
        self.producer.meanwhile = meanwhile
        while True:
            with suppress(Aborted):
                if [value] == [one for run in self.log.take(10, 1.0) for one in run.values()]:
                    self.log.commit([Record(topic=RESULT, key=b"0", value=value, partition=0)] * 2)
                    return


def test_a_delayed_end_ends_no_later_transaction(deploy: Callable[..., Deployment]) -> None:
    """An EndTxn seems lost to the client, which sends it again; the first one arrives in the middle of the next
    transaction. The broker refuses it, and what comes of each record is on the log once."""
    deployment = deploy(nodes=1, prepare=False, tango_host="none")
    deployment.create_topics()
    answers: list[int] = []
    with KafkaProxy(deployment.bootstrap) as proxy:
        copier = Copier(proxy.bootstrap, deployment.prefix)

        proxy.hold_next(END_TXN)
        deployment.send(Record(topic=SOURCE, key=b"0", value=b"first", partition=0))
        copier.copy(b"first")
        assert proxy.holds_one
        deployment.send(Record(topic=SOURCE, key=b"0", value=b"second", partition=0))
        copier.copy(b"second", lambda: answers.append(proxy.deliver()))
        found = [message.value() for message in deployment.messages(RESULT)]
        copier.log.close()
    assert found == [b"first", b"first", b"second", b"second"], answers
    assert answers[0] in _FENCED


def test_a_broker_that_goes_away_within_a_transaction_holds_it_up_for_seconds(
    deploy: Callable[..., Deployment],
) -> None:
    """The client knows the group coordinator again when it comes back, and does not wait for it without an end."""
    deployment = deploy(nodes=1, prepare=False, tango_host="none")
    deployment.create_topics()
    with KafkaProxy(deployment.bootstrap) as proxy:
        copier = Copier(proxy.bootstrap, deployment.prefix)

        def leave() -> None:
            proxy.leave()
            threading.Timer(1.0, proxy.come_back).start()

        for value, meanwhile in ((b"first", nothing), (b"second", leave)):
            deployment.send(Record(topic=SOURCE, key=b"0", value=value, partition=0))
            copying = threading.Thread(target=copier.copy, args=(value, meanwhile), daemon=True)
            copying.start()
            until(lambda copying=copying: not copying.is_alive(), f"the {value.decode()} record is copied")
        assert copier.producer.meanwhile is nothing, "the broker was away"
        found = [message.value() for message in deployment.messages(RESULT)]
        copier.log.close()
    assert found == [b"first", b"first", b"second", b"second"]


def test_heartbeats_that_wait_for_a_slow_confirmation_leave_together(deploy: Callable[..., Deployment]) -> None:
    """A broker takes one request of a connection after the other. Brokers that have just started confirm more slowly
    than heartbeats come: with a request for each heartbeat they queued, and no command could be given."""
    deployment = deploy(nodes=1, prepare=False, tango_host="none")
    deployment.create_topics()
    with KafkaProxy(deployment.bootstrap) as proxy:
        connection = Connection(Settings(bootstrap=proxy.bootstrap, prefix=deployment.prefix))
        sender = KafkaBus(connection, client="lease").sender()
        sign = SignOfLife("SdpFacade-subarray", "server", sender.post, connection.clock)
        before = len(deployment.messages(TOPIC))
        proxy.keep_answers(PRODUCE)
        sign.beat()
        until(lambda: proxy.asked[PRODUCE] == 1, "the first heartbeat has left")
        for _ in range(9):
            sign.beat()
            connection.clock.sleep(0.02)  # as long as each leaves by itself, if it may
        assert proxy.asked[PRODUCE] == 1
        proxy.release_answers()
        sender.close(HANG)
        assert proxy.asked[PRODUCE] <= 6, "for each of the two topics, the client prepares one request ahead"
    assert len(deployment.messages(TOPIC)) - before == 10
    assert len(deployment.messages(SERVERS)) == 10
