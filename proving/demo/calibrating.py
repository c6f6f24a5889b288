"""The demo's calibration: tables of gains that drift go over the bus, and SdpCalibration shows each of them."""

import hashlib
from pathlib import Path

from clients.scene import CALIBRATION
from facade.bus.kafka.bus import KafkaBus
from facade.errors import FacadeError
from facade.flows.tables.fetch import fetch, find
from facade.flows.tables.messages import COMPLETE, decode_table
from facade.flows.tables.messages import TABLES as TABLES_TOPIC
from facade.messages import Table
from facade.reading import Quality
from proving.demo.account import Line, disagreeing
from proving.demo.options import FLOWS_WITHIN
from proving.demo.system import ASSEMBLER, Demo

TABLES = 4
"""How many are sent."""
_PRODUCT = "subarray/01/gains"


class CalibrationScenario:
    """Sends tables, kills the worker that assembles them in between, and compares what came out with what was sent."""

    def __init__(self, demo: Demo) -> None:
        self._demo, self._progress = demo, demo.progress
        self._device = demo.tango_side.devices[CALIBRATION][0]
        self._announced: dict[int, str] = {}
        """Digest of each complete table, by the offset of its announcement."""

    def begin(self) -> None:
        """Let the pipeline solve and send."""
        self._demo.start_calibration(TABLES)
        self._progress.step(f"calibration: {TABLES} tables of gains, 20 MB each, in segments of 1 MB")

    def kill(self) -> None:
        """Kill the worker while a table is under way, and start it again; what it had is on the bus.

        Raises
        ------
        InfraError
            The first table never came.
        """
        self._progress.demand(lambda: self._shown("digest") != "", FLOWS_WITHIN, "a first solution is shown")
        self._progress.wait_until(lambda: bool(self._shown("assembling")), 5.0, "a table is under way")
        before = self._shown("digest")
        self._demo.report.tables_recovery = took = self._demo.restart(
            ASSEMBLER, f"{ASSEMBLER}, which assembles", lambda *_: self._shown("digest") != before, "a solution"
        )
        self._read_announcements()
        self._progress.step(f"the next solution is shown {took:.2f} s after the worker's new start")

    def account(self) -> None:
        """Put what was sent, and what devices and consumers got, into the report."""
        report = self._demo.report
        self._progress.wait_until(lambda: len(self._sent()) == TABLES, FLOWS_WITHIN, "all tables are sent")
        sent = self._sent()
        newest = list(sent.values())[-1:]
        self._progress.wait_until(lambda: [self._shown("digest")] == newest, FLOWS_WITHIN, "the newest table is shown")
        # A read shows a table at once, its event comes when the attribute's sampling allows it. The attribute is a
        # last value: of two tables within its shortest gap, it shows the second.
        self._progress.wait_until(lambda: set(newest) <= self._events(), FLOWS_WITHIN, "an event of each table")
        shown = self._events()
        self._read_announcements()
        good = set(self._announced.values()) & set(sent.values())
        report.table_account = [
            Line(self._device, "tables that were sent", TABLES, len(sent)),
            Line(self._device, "of these, announced as complete", len(sent), len(good)),
            Line(self._device, "other announcements, or the same once more", 0, len(self._announced) - len(good)),
            Line(self._device, "digests shown that no table has", 0, len(shown - set(sent.values()))),
            Line(self._device, "the newest, shown by an event", len(newest), len(shown & set(newest))),
            Line(self._device, "the newest, fetched whole and compared", 1, int(self._fetched(newest))),
        ]
        report.failures += disagreeing("calibration", report.table_account)
        if not set(newest) <= shown:
            report.failures.append(f"calibration: {self._why_no_event()}")

    def _events(self) -> set[str]:
        """Return the digests that the subscriber was given."""
        record = self._demo.recorder.records()[self._device]["digest"]
        # After a broken connection Tango gives the subscriber what it has missed as a read value.
        events = [*record.events, *([record.newest] if record.newest else [])]
        return {str(event.value) for event in events if event.value and event.quality is not Quality.INVALID}

    def _why_no_event(self) -> str:
        """Say whether the event of the digest was lost, or the subscriber is given no events at all."""
        read = self._demo.tango_side.read(self._device, ["digest"]).get("digest")
        if read is None:
            return f"no event of the newest digest, and {self._device} does not answer"
        records = self._demo.recorder.records()[self._device]
        later = {name for name, record in records.items() for event in record.events if event.received > read.time}
        if later:
            return f"the event of the newest digest was lost: later there were events of {', '.join(sorted(later))}"
        return f"the subscriber is not connected: since the newest digest's time no event came of {self._device}"

    def _sent(self) -> dict[str, str]:
        """Return the digests of the copies that the pipeline has kept, the oldest first."""
        whole = [file for file in self._demo.tables_folder.iterdir() if file.suffix != ".part"]
        copies = sorted(whole, key=lambda file: file.name)
        return {file.name: _digest(file) for file in copies}

    def _bus(self) -> KafkaBus:
        return KafkaBus(self._demo.deployment.connection, client="demo-tables")

    def _read_announcements(self) -> None:
        """Collect what was announced: more than once in a demo, as the topic forgets what is superseded."""
        for record in self._bus().read_all(TABLES_TOPIC):
            table = decode_table(record.value)
            if isinstance(table, Table) and table.state == COMPLETE and table.product == _PRODUCT:
                self._announced[record.offset] = table.sha256

    def _fetched(self, newest: list[str]) -> bool:
        copy = self._demo.options.folder / "fetched"
        bus = self._bus()
        try:
            fetch(bus, find(bus, _PRODUCT), copy, self._demo.clock)
        except FacadeError as error:
            self._progress.step(f"the newest table could not be fetched: {error}")
            return False
        found = [_digest(copy)]
        copy.unlink()
        return found == newest

    def _shown(self, attribute: str) -> object:
        shown = self._demo.tango_side.read(self._device, [attribute]).get(attribute)
        return "" if shown is None or not shown.valid or shown.value is None else shown.value


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
