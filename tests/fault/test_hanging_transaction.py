"""A broker that keeps a transaction open whose coordinator knows that it has ended holds no worker up for good."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from facade.bus.kafka.connection import Connection
from facade.bus.kafka.transactions import KafkaTransactionalLog
from facade.bus.port import Aborted, BusHealth, Record
from facade.config import Settings
from facade.infra import local
from tests.support.deployment import Deployment
from tests.support.topics import last_offset
from tests.support.waiting import until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
SOURCE = "ingest.heaps"


def cut_last_batch(folder: Path) -> None:
    """Take one byte off the end of a partition: the broker then drops its last batch, the end of a transaction."""
    log = max(one for one in folder.glob("*.log") if one.stat().st_size)
    os.truncate(log, log.stat().st_size - 1)


def sizes(data: Path) -> list[int]:
    """Return the sizes of the log of all transactions."""
    return [one.stat().st_size for one in sorted(data.glob("__transaction_state-*/*.log"))]


def copied(log: KafkaTransactionalLog) -> list[bytes | None]:
    """Take what there is and commit it."""
    try:
        values = [value for batch in log.take(10, 0.5) for value in batch.values()]
        if values:
            log.commit([])
    except Aborted as reason:
        print(reason)  # shown by pytest when the test has failed
        return []
    return values


def test_a_worker_goes_on_when_the_end_of_its_transaction_is_lost(
    deploy: Callable[..., Deployment], infra: local.Endpoints
) -> None:
    """The end of the last transaction on `positions` is lost, so they cannot be read to their end any more."""
    deployment = deploy(nodes=1, prepare=False)
    deployment.create_topics()
    settings = Settings(bootstrap=deployment.bootstrap, prefix=deployment.prefix)
    log = KafkaTransactionalLog(Connection(settings), SOURCE, group="marks", slot="0", health=BusHealth())
    deployment.send(Record(topic=SOURCE, key=b"0", value=b"first", partition=0))
    assert until(lambda: copied(log), "the first record") == [b"first"]
    positions, data = deployment.topic("positions"), infra.state_dir / "kafka" / "data"
    before: list[int] = []

    def has_ended() -> bool:
        known, before[:] = before[:], sizes(data)
        return known == before

    until(lambda: last_offset(deployment.bootstrap, positions, 0) >= 2, "the position, and the end behind it")
    until(has_ended, "the transaction's coordinator knows that it has ended", every=0.5)
    deployment.broker.kill()
    cut_last_batch(data / f"{positions}-0")
    deployment.broker.start()
    deployment.send(Record(topic=SOURCE, key=b"0", value=b"second", partition=0))
    assert until(lambda: copied(log), "the second record") == [b"second"]
    log.close()
