"""The log of a process on the bus: what is sent, what is dropped, and what never makes a line of its own."""

import logging

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from facade.flows.logs import export as module
from facade.flows.logs.export import LogExport, resource_of
from facade.flows.logs.formats import decode
from facade.flows.logs.records import LOG_SEVERITIES
from facade.kernel.clock import ManualClock, SystemClock
from facade.kernel.config import Settings
from facade.kernel.errors import ConfigError
from facade.kernel.icd.load import load
from facade.kernel.logs import start_log_export
from tests.support.waiting import until

EB = "eb-test-20261123-00001"
RESOURCE = resource_of("worker-0", {"OTEL_RESOURCE_ATTRIBUTES": "host.name=n7,rack=r01,deployment.token=s3cret"})


class Bus:
    """A writer whose records arrive when the test says so."""

    def __init__(self):
        self.records, self.is_away, self.lost, self.failed = [], False, 0, None

    def send(self, record):
        if self.failed:
            raise self.failed
        self.records.append(record)

    def mark(self):
        return len(self.records)

    def settled(self, mark):
        return not self.is_away

    def failures(self, topic):
        return self.lost

    def lines(self):
        found = []
        for record in self.records:
            form, rows = decode("logs", record.value)
            assert form.name == "otlp-json"
            found += rows
        return found


@pytest.fixture
def bus():
    return Bus()


@pytest.fixture
def export(bus):
    made = LogExport(bus, "logs", RESOURCE, ManualClock())
    yield made
    made.close()


@pytest.fixture
def logger(export):
    made = logging.Logger("facade.test", logging.DEBUG)
    made.addHandler(export)
    return made


def test_a_line_says_who_where_how_bad_and_which_one(bus, export, logger):
    logger.debug("begins")
    logger.error("lag=%d", 3, extra={"eb_id": EB})
    export.step()
    first, second = bus.lines()
    assert bus.records[0].topic == "logs"
    assert bus.records[0].key == b"r01/n7"
    source = second.source
    assert (source.component, source.host, source.rack) == ("sdp-facade/worker-0", "n7", "r01")
    assert (source.observation, first.source.observation) == (EB, "")
    assert [LOG_SEVERITIES[one.source.severity] for one in (first, second)] == ["DEBUG", "ERROR"]
    assert (first.body, second.body) == ("begins", "lag=3")
    assert [(one.sequence, one.shipper) for one in (first, second)] == [
        (1, "n7 sdp-facade/worker-0"),
        (2, "n7 sdp-facade/worker-0"),
    ]


def test_opentelemetry_s_own_package_reads_the_same(bus, export, logger):
    """The form is theirs, and not what our two ends agree upon."""
    logger.warning("lag=%d", 3)
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logger.exception("failed")
    export.step()
    request = json_format.Parse(bus.records[0].value, ExportLogsServiceRequest())
    _, again = decode("logs", request.SerializeToString())
    assert [(one.source, one.time, one.body, one.sequence, one.shipper) for one in again] == [
        (one.source, one.time, one.body, one.sequence, one.shipper) for one in bus.lines()
    ]
    (scope,) = request.resource_logs[0].scope_logs
    assert scope.scope.name == "facade.test"
    stack = {one.key: one.value.string_value for one in scope.log_records[1].attributes}["exception.stacktrace"]
    assert stack.startswith("Traceback")
    assert stack.endswith("ValueError: two\nlines")


@pytest.mark.parametrize(
    "arguments", [("%d", "no number"), ("half a character \udcff",), ("\x1b[2J\0",), ("",), ("x" * 10**6,)]
)
def test_whatever_is_logged_is_a_line(bus, export, logger, arguments):
    logger.removeHandler(export)
    export.handle(logger.makeRecord("n\udcff", logging.INFO, "f", 1, arguments[0], arguments[1:], None))
    export.step()
    (found,) = bus.lines()
    assert found.body.isprintable()
    assert len(bus.records[0].value) < 10_000


def test_while_the_bus_is_away_lines_wait_in_bounds_and_the_loss_is_told_once(bus, export, logger, monkeypatch):
    monkeypatch.setattr(module, "_MOST_LINES", 5)
    bus.is_away = True
    logger.info("first")
    export.step()
    for number in range(8):
        logger.info("%d", number)
        export.step()
    assert len(bus.records) == 1, "one batch at a time"
    assert export.dropped == 3
    bus.is_away = False
    for _ in range(4):
        export.step()
    texts = [one.body for one in bus.lines()]
    assert texts == ["first", *"01234", "log lines dropped, as the bus did not take them: 3"]
    assert [one.sequence for one in bus.lines()] == [1, 2, 3, 4, 5, 6, 10], "the hole shows what is missing"


def test_a_batch_that_is_lost_counts_as_dropped(bus, export, logger):
    logger.info("one")
    export.step()
    bus.lost = 1
    export.step()
    assert export.dropped == 1
    logger.info("two")
    for _ in range(3):
        export.step()
    assert [one.body for one in bus.lines()][1:] == ["two", "log lines dropped, as the bus did not take them: 1"]


def test_what_the_export_itself_logs_is_not_exported(bus):
    """Neither what its thread says of a bus that fails, nor what Kafka's client logs in it."""
    logger, said = logging.getLogger("facade"), []
    listener = logging.Handler()
    listener.emit = lambda record: said.append(record.getMessage())
    export = LogExport(bus, "logs", RESOURCE, SystemClock())
    bus.failed = OSError("no broker")
    logger.addHandler(listener)
    logger.addHandler(export)
    try:
        export.start()
        logger.error("something of the process")
        until(lambda: "log export failed" in said, "the export says on its own output that it fails")
        bus.failed = None
        logger.error("something else")
        until(lambda: bus.records, "it goes on")
    finally:
        logger.removeHandler(export)
        logger.removeHandler(listener)
        export.close()
    assert [one.body for one in bus.lines()] == ["something else"]


def test_what_waits_at_the_end_is_sent_and_a_bus_that_is_away_holds_nobody_up(bus, logger):
    for is_away in (False, True):
        bus.is_away = is_away
        export = LogExport(bus, "logs", RESOURCE, SystemClock())
        logger.handlers[:] = [export]
        export.start()
        logger.info("last")
        export.close()
        assert bus.lines()[-1].body == "last"
        logger.info("after the end")
    assert len(bus.records) == 2


@pytest.mark.parametrize("topic", ["nothing", "commands", "state", "logs.summary"])
def test_a_topic_that_takes_no_logs_is_refused(topic):
    with pytest.raises(ConfigError, match="SDP_LOG_EXPORT"):
        start_log_export(load(), Settings(log_export=topic), "a", ManualClock())
