"""A broker that loses the end of a log holds nobody up for good: neither workers nor device servers."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from facade.bus.kafka.bus import KafkaBus
from facade.bus.kafka.connection import Connection
from facade.bus.kafka.epochs import find_kept
from facade.bus.kafka.transactions import KafkaTransactionalLog
from facade.bus.port import Aborted, BusHealth, Record, Span
from facade.bus.worker_positions import WorkerPosition, position_record
from facade.config import Settings
from facade.infra import local
from facade.runtime.accounts import StreamAccount
from tests.support.deployment import Deployment
from tests.support.topics import last_offset, send
from tests.support.waiting import until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
SOURCE = "ingest.heaps"
sizes: list[int] = []


def cut_last_batch(folder: Path) -> None:
    """Take one byte off the end of a partition: the broker then drops its last batch, which is a mark."""
    log = max(one for one in folder.glob("*.log") if one.stat().st_size)
    os.truncate(log, log.stat().st_size - 1)


def has_ended(data: Path) -> bool:
    """Return whether the state of transactions is as it was at the last look."""
    before, sizes[:] = sizes[:], [one.stat().st_size for one in sorted(data.glob("__transaction_state-*/*.log"))]
    return before == sizes


def copied(log: KafkaTransactionalLog) -> list[bytes | None]:
    """Take what there is and commit it."""
    try:
        values = [value for run in log.take(10, 0.5) for value in run.values()]
        if values:
            log.commit([])
    except Aborted as reason:
        print(reason)  # shown by pytest when the test has failed
        return []
    return values


def test_records_that_replace_what_a_worker_has_counted_are_taken(
    deploy: Callable[..., Deployment], infra: local.Endpoints
) -> None:
    """The broker loses the last record, and the log grows beyond the worker's place before the worker looks: once while
    the worker does not run, and once while it does."""
    deployment = deploy(nodes=1, prepare=False)
    deployment.create_topics()
    settings = Settings(bootstrap=deployment.bootstrap, prefix=deployment.prefix)
    place, folder = (SOURCE, 0), infra.state_dir / "kafka" / "data" / f"{deployment.topic(SOURCE)}-0"

    def send_each(*values: bytes) -> None:
        for value in values:  # each in a batch of its own
            send(deployment.bootstrap, deployment.topic(SOURCE), [(b"0", value)], partition=0)

    def lose_the_last_one() -> None:
        deployment.broker.kill()
        cut_last_batch(folder)
        deployment.broker.start()

    def join() -> KafkaTransactionalLog:
        return KafkaTransactionalLog(Connection(settings), SOURCE, group="cut", slot="0", health=BusHealth())

    log, taken = join(), list[bytes | None]()

    def has_taken(number: int) -> bool:
        taken.extend(copied(log))
        return len(taken) >= number

    send_each(b"1", b"2", b"3")
    until(lambda: has_taken(3), "the first records")
    log.close()
    lose_the_last_one()
    send_each(b"4", b"5")
    log = join()
    until(lambda: has_taken(5), "what replaces the third one, while no worker ran")
    assert log.spans()[place].log.endswith("#1")
    lose_the_last_one()
    send_each(b"6", b"7")
    until(lambda: has_taken(7), "what replaces the fifth one, while the worker runs")
    assert log.spans()[place].log.endswith("#2")
    assert taken == [b"1", b"2", b"3", b"4", b"5", b"6", b"7"]
    log.close()

    # `positions` lost its end as well; the accounts still say where transactions ended.
    span = log.spans()[place]
    position = WorkerPosition(group="cut", topic=SOURCE, partition=0, log=span.log, next=span.end - 3, worker="0")
    old = position_record(position)
    send(deployment.bootstrap, deployment.topic("positions"), [(old.key, old.value)], partition=0)
    for end in (span.end - 1, span.end):
        value = StreamAccount()
        value.cover(Span(span.log, end - 1, end))
        entry = msgspec.json.encode(value.entry("0", SOURCE, 0, 0))
        send(deployment.bootstrap, deployment.topic("accounts"), [(f"{SOURCE}/0".encode(), entry)], partition=0)
    send_each(b"8", b"9")
    log, transactions = join(), list[list[bytes | None]]()

    def has_caught_up() -> bool:
        transactions.append(copied(log))
        return transactions[-1][-1:] == [b"9"]

    until(has_caught_up, "all that comes again, and what is new")
    assert [one for one in transactions if one][:2] == [[b"4", b"6"], [b"7"]]
    assert [value for one in transactions for value in one] == [b"4", b"6", b"7", b"8", b"9"]
    log.close()


def test_a_worker_goes_on_when_marks_are_lost(deploy: Callable[..., Deployment], infra: local.Endpoints) -> None:
    """The broker ends as in a power cut, and loses the mark of the last transaction on the worker's positions, which
    are then not to be read any more; the worker goes on with the next record all the same."""
    deployment = deploy(nodes=1, prepare=False)
    deployment.create_topics()
    settings = Settings(bootstrap=deployment.bootstrap, prefix=deployment.prefix)
    log = KafkaTransactionalLog(Connection(settings), SOURCE, group="marks", slot="0", health=BusHealth())
    send(deployment.bootstrap, deployment.topic(SOURCE), [(b"0", b"first")], partition=0)
    assert until(lambda: copied(log), "the first record") == [b"first"]
    positions, data = deployment.topic("positions"), infra.state_dir / "kafka" / "data"
    sizes.clear()
    until(lambda: last_offset(deployment.bootstrap, positions, 0) >= 2, "the position, and the mark behind it")
    until(lambda: has_ended(data), "the transaction's coordinator knows that it has ended", every=0.5)
    deployment.broker.kill()
    cut_last_batch(data / f"{positions}-0")
    deployment.broker.start()
    send(deployment.bootstrap, deployment.topic(SOURCE), [(b"0", b"second")], partition=0)
    assert until(lambda: copied(log), "the second record") == [b"second"]
    log.close()


def test_a_device_server_goes_on_when_the_end_of_a_topic_is_lost(
    deploy: Callable[..., Deployment], infra: local.Endpoints
) -> None:
    """The broker loses the last record that a device server has written, and so refuses what follows: several records
    are waiting then. All of them are told to have failed, and the next one is written by another client; whoever reads
    the topic is told that its place is not there any more, and learns where others have taken its place."""
    deployment = deploy(nodes=1, prepare=False)
    deployment.create_topics()
    settings = Settings(bootstrap=deployment.bootstrap, prefix=deployment.prefix)
    bus = KafkaBus(Connection(settings), client="lost")
    writer = bus.writer()
    reader = bus.open_reader({"accounts": None}, {}, resets=False)
    for _ in range(3):
        writer.send_durably(Record(topic="accounts", key=b"0", value=b"before"), 30.0)
    until(lambda: [*reader.take(10, 0.1)] or reader.caught_up("accounts"), "the records")
    until(lambda: reader.take(10, 0.1) or reader.reached("accounts")[0] == 3, "the end of the topic")
    deployment.broker.kill()
    cut_last_batch(infra.state_dir / "kafka" / "data" / f"{deployment.topic('accounts')}-0")
    waiting = Record(topic="accounts", key=b"0", value=b"waiting")
    for _ in range(20):
        writer.send(waiting)
    deployment.broker.start()
    ended = threading.Event()

    def write() -> None:
        until(lambda: writer.send(waiting) or writer.failures("accounts") > 1, "the client has died", every=0.2)
        writer.send_durably(Record(topic="accounts", key=b"0", value=b"after"), 30.0)
        ended.set()

    threading.Thread(target=write, daemon=True).start()
    until(ended.is_set, "the writer goes on")
    until(lambda: reader.take(10, 0.1) or reader.is_misplaced, "the reader is told")
    assert bus.watch().kept({("accounts", 0): reader.last_read("accounts")[0]}) == {("accounts", 0): 2}
    writer.close(5.0)
    reader.close()


def test_the_question_about_leader_epochs_is_answered_for_all_partitions(deploy: Callable[..., Deployment]) -> None:
    """However many records stand behind the places: those of one partition keep no other one waiting."""
    deployment = deploy(nodes=1, prepare=False)
    deployment.create_topics()
    places = {(topic, 0): (10, 0) for topic in (SOURCE, "alerts", "calibration", "tables")}
    for topic, partition in places:
        values = [(b"0", b"%200d" % number) for number in range(2000)]
        send(deployment.bootstrap, deployment.topic(topic), values, partition=partition)
    settings = Settings(bootstrap=deployment.bootstrap, prefix=deployment.prefix)
    assert find_kept(Connection(settings), places, BusHealth()) == dict.fromkeys(places, 10)
