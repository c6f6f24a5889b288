"""What a site engineer looks at the bus with, on a real broker: dead letters and putting them back, `bus check`."""

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from facade.admin.redrive import FROM, put_back
from facade.admin.topics import create_topics
from facade.admin.transaction_writer import KafkaTransactionWriter
from facade.infra import local
from facade.kernel.bus.dead_letters import TOPIC, dead_letter
from facade.kernel.bus.kafka.admin import find_range
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.producer import KafkaWriter
from facade.kernel.bus.kafka.read_range import read_range
from facade.kernel.bus.port import BusHealth, Record
from facade.kernel.config import Settings
from facade.kernel.errors import BusError
from facade.kernel.icd.load import load
from facade.kernel.outcome import RecordRejected
from facade.kernel.runtime import heartbeats
from tests.support import fork_server, topics
from tests.support.heaps import encoded, heap
from tests.support.waiting import HANG, until

pytestmark = pytest.mark.kafka

ICD = load()
HEAPS = "ingest.heaps"
COMMAND = str(Path(sys.executable).with_name("sdp-facade"))
_numbers = itertools.count()
VALUES = encoded(*(heap(seq=number, time=round(time.time() * 1e6)) for number in range(300)))
"""Notifications that a worker would count now: what would fail again is not put back."""


@pytest.fixture
def connection(infra: local.Endpoints):
    made = Connection(Settings(bootstrap=infra.bootstrap, prefix=f"tools{os.getpid()}-{next(_numbers)}."))
    assert create_topics(made, ICD.topics) == []
    yield made
    topics.delete(made.bootstrap, made.prefix)


def environment(connection: Connection) -> dict[str, str]:
    return {**os.environ, "KAFKA_BOOTSTRAP": connection.bootstrap, "SDP_TOPIC_PREFIX": connection.prefix}


def call(connection: Connection, *words: str, code: int = 0) -> str:
    done = fork_server.run([COMMAND, *words], environment(connection), HANG)
    output, errors = done.stdout.decode(), done.stderr.decode()
    assert done.returncode == code, output + errors
    return output if code == 0 else output + errors


def write_letters(connection: Connection, count: int, reason: str = "unknown-node") -> None:
    why = RecordRejected(reason, "$.node", "expected 0 to 3, got \x1b[2J7")
    came = [
        Record(topic=HEAPS, key=b"0", value=value, partition=0, offset=number, timestamp_us=len(reason))
        for number, value in enumerate(VALUES[:count])
    ]
    KafkaWriter(connection, health=BusHealth(), client="test").send_all_durably(
        [dead_letter(record, why, by="test") for record in came], HANG
    )


def back(connection: Connection) -> Counter[bytes]:
    return Counter(record.value for record in read_range(connection, HEAPS, find_range(connection, HEAPS)))


def test_dead_letters_go_back_once_whatever_is_killed(connection: Connection) -> None:
    write_letters(connection, 300)
    write_letters(connection, 2, "schema")
    assert "\x1b" not in call(connection, "dead-letters", "list") + call(connection, "dead-letters", "show", "0:0")

    words = ["dead-letters", "redrive", "--reason", "unknown-node", "--json"]
    dry = json.loads(call(connection, *words))
    assert (dry["done"], dry["chosen"], back(connection)) == (False, 300, Counter())

    # One is killed while it runs, with 150 s of work before it; another one in the middle of a transaction.
    running = subprocess.Popen(
        [COMMAND, *words, "--yes", "--rate", "2"], env=environment(connection), stdout=subprocess.DEVNULL
    )
    until(lambda: running.poll() is not None or back(connection), "some are back")
    assert running.poll() is None
    running.send_signal(signal.SIGKILL)
    running.wait(HANG)
    killed = KafkaTransactionWriter(connection, "dead-letters-redrive")
    letter = next(read_range(connection, TOPIC, {0: (299, 300)}))
    killed._client.begin_transaction()
    for record in put_back(letter):
        killed._producer.produce(record)
    killed._client.flush(HANG)

    ended = json.loads(call(connection, *words, "--yes", "--rate", "10000"))
    assert 0 < ended["put back"] < 300
    assert back(connection) == Counter(VALUES)
    assert json.loads(call(connection, *words, "--yes"))["put back"] == 0
    first, _second = (KafkaTransactionWriter(connection, "dead-letters-redrive") for _ in range(2))
    with pytest.raises(BusError, match="another process has begun to write as"):
        first.write(put_back(letter))
    assert back(connection) == Counter(VALUES)

    again = json.loads(call(connection, "dead-letters", "redrive", "0:5", "--again", "--yes", "--json"))
    assert again["put back"] == 1
    assert back(connection)[VALUES[5]] == 2
    found = topics.read_all(connection.bootstrap, connection.topic(HEAPS))
    assert dict(found[-1].headers())[FROM] == b"0:5"
    listed = json.loads(call(connection, "dead-letters", "list", "--json", "--since", "1h", "--limit", "3"))
    assert len(listed["letters"]) == 3
    assert {row["reason"]: (row["letters"], row["put back"]) for row in listed["counts"]} == {
        "unknown-node": (300, 300),
        "schema": (2, 0),
    }
    last = find_range(connection, TOPIC)[0][1] - 1
    assert "there is the mark of a transaction" in call(connection, "dead-letters", "show", f"0:{last}", code=1)


def test_export_writes_what_came(connection: Connection, tmp_path: Path) -> None:
    write_letters(connection, 3)
    file, folder = tmp_path / "letters.jsonl", tmp_path / "raw"
    call(connection, "dead-letters", "export", str(file), "--reason", "unknown-node")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["value"] for line in lines] == [{"encoding": "utf-8", "data": value.decode()} for value in VALUES[:3]]
    assert {(line["topic"], line["reason"]) for line in lines} == {(HEAPS, "unknown-node")}
    call(connection, "dead-letters", "export", str(folder), "--raw")
    assert [(folder / f"0-{number}").read_bytes() for number in range(3)] == VALUES[:3]
    assert "error: " in call(connection, "dead-letters", "export", str(file), code=1), "it is there already"


def test_the_check_finds_what_is_wrong(connection: Connection) -> None:
    def findings(code: int, *words: str) -> list[tuple[str, str, str]]:
        printed = json.loads(call(connection, "bus", "check", "--json", *words, code=code))
        assert printed["exit_code"] == code
        return [(one["level"], one["about"], one["text"]) for one in printed["findings"]]

    bus = KafkaWriter(connection, health=BusHealth(), client="test")
    stop = threading.Event()

    def live() -> None:
        while not stop.wait(0.2):
            ahead_us = round((time.time() + 30) * 1e6)
            heartbeat = heartbeats.HeartbeatMessage(
                component="test", incarnation="1", devices=[], time=ahead_us, interval=1.0
            )
            bus.send_durably(heartbeats.heartbeat_record(heartbeat), HANG)

    living = threading.Thread(target=live)
    living.start()
    try:
        found = findings(2, "--role", "aggregate")
        assert [one[:2] for one in found if one[0] != "NOTE"] == [("FAILED", "clock of test")]
        admin = AdminClient({"bootstrap.servers": connection.bootstrap})
        setting = ConfigEntry("retention.ms", "1000", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource("topic", connection.topic("flagging"), incremental_configs=[setting])
        for future in [
            *admin.incremental_alter_configs([resource]).values(),
            *admin.delete_topics([connection.topic("storage")]).values(),
        ]:
            future.result(HANG)
        topics.send(connection.bootstrap, connection.topic(HEAPS), [(b"1", b"{}")], partition=0)
        place = TopicPartition(connection.topic(HEAPS), 0, 0)
        group = ConsumerGroupTopicPartitions(f"{connection.prefix}aggregate", [place])
        for future in admin.alter_consumer_group_offsets([group]).values():
            future.result(HANG)
        found = findings(2)
    finally:
        stop.set()
        living.join(HANG)
    assert ("DEGRADED", "topic flagging") in [one[:2] for one in found]
    assert ("FAILED", f"topic {connection.topic('storage')}") in [one[:2] for one in found]
    (lag,) = [text for _, about, text in found if about == "group aggregate, ingest.heaps/0"]
    assert lag.startswith("nobody takes its 1 records")


def test_a_wrong_broker_is_one_line() -> None:
    variables = {**os.environ, "KAFKA_BOOTSTRAP": "127.0.0.1:1"}
    calls = ["dead-letters list", "dead-letters redrive --yes", "tables list", "topics create"]
    running = [
        subprocess.Popen([COMMAND, *one.split()], env=variables, stderr=subprocess.PIPE, text=True) for one in calls
    ]
    for process in running:
        _, said = process.communicate(timeout=HANG)
        assert process.returncode == 1
        (line,) = said.splitlines()
        assert line.startswith("error: ")
        assert "no broker answers there" in line
        assert "KAFKA_BOOTSTRAP" in line


def test_quotas_are_set_and_compared_on_a_real_broker(infra: local.Endpoints) -> None:
    environment = {**os.environ, "KAFKA_BOOTSTRAP": infra.bootstrap}

    def run(*arguments: str) -> tuple[int, str]:
        done = fork_server.run([COMMAND, "quotas", *arguments], environment, HANG)
        return done.returncode, (done.stdout + done.stderr).decode()

    high = ("--rate", "log=2000000000")  # no other test is slowed down by it
    code, text = run("check", *high)
    assert code == 1
    assert "sdp-shipper: expected producer_byte_rate=2000000000, got" in text
    assert run("apply", *high)[0] == 0
    assert run("check", *high) == (0, "1 quotas are as planned, and no other role has one\n")
