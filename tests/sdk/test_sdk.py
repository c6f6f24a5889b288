"""The public surface: what it costs, what it says without a broker, and the examples of its docstrings."""

import ast
import doctest
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import sdp_facade_sdk
from facade.flows.commands.source import StateSource
from facade.kernel.bus.memory import MemoryBus, MemoryLog
from facade.kernel.bus.port import Record
from facade.kernel.config import load_client_settings
from facade.kernel.errors import ConfigError
from facade.sdk.controller.api import Controller
from tests.support.controllers import FIRST, Life, Site

pytestmark = pytest.mark.needs("all")

HAVE_EXAMPLES = {
    "AlertFilter", "AlertSource", "BlockSource", "Comparison", "Controller", "HeapProducer", "MemoryLog", "PacketCodec",
    "ReservationSource", "StateSource", "TableProducer", "TelescopeModel", "encode_metric", "encode_pointing",
    "encode_solution", "newest_sequence", "open_bus", "read_ledger",
}  # fmt: skip
WRITE = {
    "AlertSource": "alerts",
    "BlockSource": "processing-blocks",
    "HeapProducer": "ingest.heaps",
    "PacketCodec": "alert-packets",
    "ReservationSource": "reservations",
    "StateSource": "state",
    "TableProducer": "calibration",
    "encode_metric": "quality",
    "encode_pointing": "calibration",
}
"""Topic to which the example writes."""


@dataclass
class Confirmed:
    """See `facade.sdk.producer.heaps.Fate`."""

    confirmed = settled = True


@dataclass
class BatchLog:
    """The log of a `HeapProducer`, in memory."""

    log: MemoryLog

    def post(self, record: Record) -> Confirmed:
        self.log.append(record)
        return Confirmed()

    def since(self, topic: str, time: float) -> Iterable[Record]:
        return self.log.records(topic)

    def close(self, timeout: float) -> None:
        """Have nothing queued."""


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MemoryLog:
    log = MemoryLog()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KAFKA_BOOTSTRAP", "127.0.0.1:1")
    monkeypatch.setattr("facade.kernel.bus.kafka.opening.KafkaBus", lambda connection, client: MemoryBus(log))
    monkeypatch.setattr("facade.sdk.producer.heaps.KafkaBatchLog", lambda connection, client: BatchLog(log))
    return log


def example(name: str, **replaced: Any) -> doctest.DocTest:
    names = {one: getattr(sdp_facade_sdk, one) for one in sdp_facade_sdk.__all__}
    text = "" if isinstance(names[name], str) else names[name].__doc__ or ""
    return doctest.DocTestParser().get_doctest(text, {**names, **replaced}, name, None, 0)


def run_example(name: str, **replaced: Any) -> None:
    said: list[str] = []
    doctest.DocTestRunner().run(example(name, **replaced), out=said.append)
    assert not said, "".join(said)


def test_producers_and_controllers_have_examples() -> None:
    assert {name for name in sdp_facade_sdk.__all__ if example(name).examples} == HAVE_EXAMPLES


@pytest.mark.parametrize("name", sorted(HAVE_EXAMPLES - {"Controller"}))
def test_an_example_runs_as_it_stands(name: str, log: MemoryLog) -> None:
    run_example(name)
    assert name not in WRITE or log.records(WRITE[name])


def test_the_example_of_a_controller_executes_a_command() -> None:
    made: list[Controller] = []
    run_example("Controller", run=made.append)
    site = Site()
    site.say(State="ON", obsState="IDLE")
    command = site.send("Configure", FIRST, argument={"scan_type": "target:a"})
    Life(site, controller=made[0]).work()
    assert site.outcome(command) == "COMPLETED"
    assert site.reported("obsState") == ["IDLE", "CONFIGURING", "READY"]


def test_importing_it_is_cheap() -> None:
    code = "import sys, sdp_facade_sdk; print([n for n in sys.modules if n.split('.')[0] in ('facade', 'tango')])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
    with pytest.raises(AttributeError, match="nonsense"):
        getattr(sdp_facade_sdk, "nonsense")  # noqa: B009 - mypy knows that it is not there


def test_type_checkers_see_the_modules_that_are_imported() -> None:
    (guarded,) = [
        node for node in ast.parse(Path(sdp_facade_sdk.__file__).read_text()).body if isinstance(node, ast.If)
    ]
    seen = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in guarded.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    renamed = sdp_facade_sdk._RENAMED
    assert seen == {name: (module, renamed.get(name, name)) for name, module in sdp_facade_sdk._WHERE.items()}
    assert sorted(seen) == sorted(sdp_facade_sdk.__all__)


def test_without_a_broker_the_error_says_what_to_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KAFKA_BOOTSTRAP", raising=False)
    monkeypatch.delenv("SDP_FACADE_CONFIG", raising=False)
    what = "no Kafka broker is configured: expected host:port in KAFKA_BOOTSTRAP, or bootstrap in .* SDP_FACADE_CONFIG"
    opening = (
        lambda: sdp_facade_sdk.AlertSource("receive/0007"),
        lambda: sdp_facade_sdk.BlockSource("controller"),
        lambda: sdp_facade_sdk.HeapProducer(1, tmp_path / "spool"),
        lambda: sdp_facade_sdk.ReservationSource("controller"),
        sdp_facade_sdk.TableProducer,
        sdp_facade_sdk.TelescopeModel,
    )
    for one in opening:
        with pytest.raises(ConfigError, match=what):
            one()


def test_a_broker_may_be_named_by_the_settings_file(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text('bootstrap = "kafka-1:9092"')
    assert load_client_settings({"SDP_FACADE_CONFIG": str(tmp_path / "site.toml")}).bootstrap == "kafka-1:9092"
    with pytest.raises(ConfigError, match="no Kafka broker"):
        load_client_settings({"SDP_FACADE_CONFIG": str(tmp_path / "site.toml"), "KAFKA_BOOTSTRAP": ""})


class Closing(MemoryBus):
    """A writer that counts how often it was closed."""

    closed = 0

    def close(self, timeout: float) -> None:
        self.closed += 1


def test_a_producer_closes_the_bus_that_it_has_opened_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_BOOTSTRAP", "127.0.0.1:1")
    own, given = Closing(MemoryLog()), Closing(MemoryLog())
    monkeypatch.setattr("facade.kernel.bus.kafka.opening.KafkaBus", lambda connection, client: own)
    with sdp_facade_sdk.AlertSource("receive/0007", given), sdp_facade_sdk.BlockSource("a", given.send):
        pass
    assert (own.closed, given.closed) == (0, 0)
    with sdp_facade_sdk.AlertSource("receive/0007"), sdp_facade_sdk.BlockSource("a"), sdp_facade_sdk.TableProducer():
        pass
    assert own.closed == 3


@pytest.mark.parametrize(
    ("device", "attribute", "value", "why"),
    [
        ("mid-sdp/subarray/01", "obsState", "RUNNING", "expected one of .*EMPTY"),
        ("mid-sdp/subarray/01", "heapRate", 1.0, "expected one of .*obsState"),
        ("mid-sdp/subarrays/01", "obsState", "IDLE", "device: expected one of .*mid-sdp/subarray/"),
        ("mid-sdp/subarray/01", "obsState", "\x00" * 1_000_000, "obsState"),
        ("mid-sdp/subarray/01", "receiveAddresses", {"a": float("nan")}, "what JSON can hold, got .*nan"),
    ],
)
def test_a_state_that_no_device_shows_is_not_sent(device: str, attribute: str, value: Any, why: str) -> None:
    log = MemoryLog()
    with pytest.raises(ValueError, match=why):
        StateSource("receive-0007", MemoryBus(log)).publish(device, attribute, value)
    assert not log.records("state")
