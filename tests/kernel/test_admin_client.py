"""Admin requests whose answers come late: the process lives (librdkafka issue 4605)."""

import gc
import re
import subprocess
import sys
import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from facade.kernel.bus.kafka.admin import KafkaTopicWatch
from facade.kernel.bus.kafka.connection import Clients, Connection
from facade.kernel.config import Settings
from tests.support.kafka_proxy import FIND_COORDINATOR, KafkaProxy
from tests.support.waiting import HANG

_ROOT = Path(__file__).parents[2]
_ASKS_TWICE = """
import sys
import weakref
from facade.admin import cluster
from facade.kernel.bus.kafka import timeouts
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.config import Settings
from facade.kernel.errors import BusError

timeouts.COMMAND = 0.5
connection = Connection(Settings(bootstrap=sys.argv[1]))
connection.admin().list_topics(timeout=60)
for _ in range(2):
    print("asks", flush=True)
    sys.stdin.readline()
    try:
        cluster.describe_group(connection, "aggregate")
    except BusError as error:
        print(error, flush=True)
"""
"""The second question goes the same way as the first one, so its answer comes behind the late one."""


@pytest.fixture
def bootstrap() -> Iterator[str]:
    mock = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "mock"})
    (broker,) = mock.list_topics(timeout=HANG).brokers.values()
    yield f"{broker.host}:{broker.port}"
    mock.flush(0.0)  # its cluster lives as long as it does


@pytest.mark.needs("repository")
def test_a_process_lives_though_a_coordinator_is_found_late(bootstrap: str) -> None:
    with KafkaProxy(bootstrap) as proxy:
        process = subprocess.Popen(
            [sys.executable, "-c", _ASKS_TWICE, proxy.bootstrap],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT,
        )  # fmt: skip
        with process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                assert process.stdout.readline() == "asks\n"
                proxy.keep_answers(FIND_COORDINATOR)
                process.stdin.write("go on\n")
                process.stdin.flush()
                assert "group local.aggregate: " in process.stdout.readline()
                proxy.release_answers()
                process.stdin.write("go on\n")
                process.stdin.flush()
                assert process.wait(HANG) == 0
            finally:
                process.kill()


def test_the_admin_client_leaves_a_controller_that_is_gone() -> None:
    """An idle device server took 0.8 of a core and heard nothing of topics for minutes, as one of three was killed."""
    configs: list[dict[str, Any]] = []
    Connection(Settings(), clients=Clients(admin=configs.append)).admin()
    assert configs[0]["enable.sparse.connections"] is False
    assert configs[0]["topic.metadata.refresh.interval.ms"] <= 10_000


def test_an_admin_client_that_nobody_answers_is_told_of_the_brokers_again(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has forgotten all brokers may never look for another one."""
    failed: Future[Any] = Future()
    failed.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
    monkeypatch.setattr("facade.kernel.bus.kafka.admin.describe", lambda *_: {"commands": failed})
    clients = Clients(admin=lambda config: AdminClient({**config, "bootstrap.servers": "127.0.0.1:1", "log_level": 0}))
    connection = Connection(Settings(bootstrap=bootstrap), clients=clients)
    with pytest.raises(KafkaException):
        connection.admin().list_topics(timeout=0.1)
    assert KafkaTopicWatch(connection).step(["commands"]) == {}
    assert connection.admin().list_topics(timeout=HANG).brokers


@pytest.mark.needs("repository")
def test_no_process_that_works_asks_a_coordinator_by_the_admin_client() -> None:
    """Only `bus check` does, which ends, and a worker before it begins: without an answer it ends as well."""
    question = re.compile(r"\.(?:describe|list|alter|delete)_consumer_groups?(?:_offsets)?\b")
    sources = [path for part in ("facade", "devices", "clients") for path in (_ROOT / part).rglob("*.py")]
    asking = {path.name for path in sources if question.search(path.read_text())}
    assert asking == {"admin.py", "cluster.py"}
    using = {path.name for path in sources if "describe_group(" in path.read_text()}
    assert using == {"cluster.py", "bus.py"}
    assert {path.name for path in sources if "members_of(" in path.read_text()} == {"admin.py", "worker_process.py"}


def test_a_process_has_one_admin_client_which_outlives_its_connections() -> None:
    """A worker died as it threw one away while a request was under way (`Assertion eonce->refcnt > 0`)."""
    settings = Settings(bootstrap="127.0.0.1:1")
    first = Connection(settings).admin()
    assert Connection(settings).admin() is first
    assert Connection(Settings(bootstrap="127.0.0.1:2")).admin() is not first
    kept = weakref.ref(first)
    del first
    gc.collect()
    assert kept() is not None


def test_no_offset_is_asked_for_by_the_admin_client() -> None:
    """The leaders of partitions may be found after the time-out, which ends the process as well."""
    assert [path.name for path in (_ROOT / "facade").rglob("*.py") if ".list_offsets(" in path.read_text()] == []


@pytest.mark.needs("repository")
def test_no_committed_offset_is_asked_for_by_the_admin_client() -> None:
    """A fault run crashed (SIGSEGV in `rd_kafka_cgrp_op`): a broker answered that was not the coordinator any more."""
    sources = [path for part in ("facade", "devices", "clients", "lab") for path in (_ROOT / part).rglob("*.py")]
    assert [path.name for path in sources if "admin.list_consumer_group_offsets" in path.read_text()] == []


@pytest.mark.needs("repository")
def test_only_a_connection_makes_an_admin_client() -> None:
    sources = [path for part in ("facade", "devices", "clients") for path in (_ROOT / part).rglob("*.py")]
    assert {path.name for path in sources if "AdminClient(" in path.read_text()} == set()
    naming = {path.name for path in sources if re.search(r"import .*\bAdminClient\b", path.read_text())}
    assert naming == {"connection.py"}
