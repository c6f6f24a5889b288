"""The fault run: starts all, sends alerts in bursts, kills parts at random, and asks everyone what became of them."""

import random
import sys
from pathlib import Path

import msgspec
import tango

from devices.registration import register
from facade.bus.kafka.connection import Connection
from facade.bus.kafka.writer import KafkaStreamWriter
from facade.bus.port import BusHealth
from facade.exports.tango_db import SERVER
from facade.flows.alerts.messages import ALERTS, alert_record
from facade.infra import local
from proving.alert_faults import journal
from proving.alert_faults.account import Found
from proving.alert_faults.scenario import Story, digest
from proving.testbed import Running, Stage

DEVICE = "mid-sdp/alerts/0"

_AHEAD = 50_000
"""The client is never further behind the newest alert than this: the device keeps the newest 100,000."""
_BURSTS = 4
"""Of so many bursts at most the client lacks entries when the next one is sent."""
_STANDSTILL = 90.0
"""Without a new entry at the client for so long, what is missing counts as lost [s]."""
_READY_WITHIN = 60.0
_PROGRESS = 5.0
_LOOK = 0.02
_SERVER = "from devices.server import main; main()"


class AlertFaultRun:
    """One run of the alerts.

    Parameters
    ----------
    kills
        How often the device server is killed, and how often the broker.
    seed
        Of the alerts and of the kills; what happens in between is up to the machine.
    """

    def __init__(self, stage: Stage, *, alerts: int, burst: int, kills: int, seed: int) -> None:
        self._stage, self._alerts, self._burst = stage, alerts, burst
        self._settings = stage.settings("alert-faults", nodes=1)
        self._journal = stage.folder / "received.bin"
        self._chance = random.Random(seed)  # noqa: S311 - a schedule that can be repeated
        self._story = Story(seed, round(stage.clock.now() * 1e6))
        self._sent: list[tuple[str, bytes]] = []
        self._patience = 0
        """The next burst comes when the client is at most so far behind."""
        parts = ["device server"] * kills + ["broker"] * kills
        self._due = sorted((self._chance.uniform(0.0, 1.0) * (alerts - burst), part) for part in parts)
        """At how many received entries which part is killed; the last burst is sent when all that is done."""
        self._server: Running | None = None
        self.kills = {"device server": 0, "broker": 0}
        self.peak_memory = 0
        """Of the device server, over all its lives [bytes]."""
        self.broker_away = 0.0
        """Longest time from a kill of the broker until it took connections again [s]."""
        self.seconds = 0.0
        """From the first alert sent to the last one received."""

    def run(self) -> Found:
        """Do it all.

        Raises
        ------
        BenchError
            A part did not come back.
        """
        stage = self._stage
        with stage.topics(self._settings, 1):
            register(stage.icd, self._settings, stage.tango_host)
            self._revive()
            stage.until(self._answers, "the device server", _READY_WITHIN)
            client = self._start_client()
            begin = stage.clock.monotonic()
            self._drive(client)
            self.seconds = stage.clock.monotonic() - begin
            stage.until(self._answers, "the device server", _READY_WITHIN)
            shown = msgspec.json.decode(self._proxy().command_inout("GetAlarms"))
            client.call_off()
            return Found(
                sent=self._sent,
                refused=self._story.refused,
                client=stage.result(client, journal.ClientReport, 60.0),
                received=journal.read(self._journal),
                wanted=self._story.alarms,
                shown=shown,
            )

    def _drive(self, client: Running) -> None:
        """Send and kill until the client has everything, or gets nothing any more."""
        clock = self._stage.clock
        connection = Connection(self._settings, clock=clock)
        writer = KafkaStreamWriter(connection, health=BusHealth(), client="sources")
        said = moved = clock.monotonic()
        before = 0
        while client.is_alive:
            # What the client does not get counts as received, or the others could never be all.
            received = journal.count(self._journal) + len(self._story.refused)
            if received >= self._alerts:
                break
            now = clock.monotonic()
            if received != before:
                before, moved = received, now
            if now - moved > _STANDSTILL:
                self._stage.say(f"  nothing more comes: {received:,} of {len(self._sent):,}; {client.log_end()}")
                break
            self._look_at_memory()
            if self._due and received >= self._due[0][0]:
                self._kill(self._due.pop(0)[1])
            self._revive()
            writer.poll()
            if len(self._sent) - received <= self._patience and self._may_send:
                self._send(writer)
            if now - said >= _PROGRESS:
                said = now
                self._stage.say(f"  {self._in_words(received)}")
            clock.sleep(_LOOK)
        writer.flush(_READY_WITHIN)

    @property
    def _may_send(self) -> bool:
        left = self._alerts - len(self._sent)
        return left > self._burst or (left > 0 and not self._due)

    def _send(self, writer: KafkaStreamWriter) -> None:
        records = []
        for message in self._story.tell(min(self._burst, self._alerts - len(self._sent))):
            self._sent.append((message.source, digest(message)))
            records.append(alert_record(message))
        writer.send_many(ALERTS, [record.key for record in records], [record.value for record in records])
        self._patience = self._chance.randint(0, min(_BURSTS * self._burst, _AHEAD - self._burst))

    def _kill(self, part: str) -> None:
        self.kills[part] += 1
        if part == "device server" and self._server is not None:
            self._server.kill()
        elif part == "broker":
            clock, begin = self._stage.clock, self._stage.clock.monotonic()
            local.stop_service(self._stage.state_dir, local.ServiceName.KAFKA, kill=True, clock=clock)
            local.start_service(self._stage.state_dir, local.ServiceName.KAFKA, clock=clock)
            self.broker_away = max(self.broker_away, clock.monotonic() - begin)

    def _revive(self) -> None:
        """Start the device server, at first and whenever it has ended."""
        if self._server is None or not self._server.is_alive:
            self._server = self._stage.start("device-server", [sys.executable, "-c", _SERVER, "alerts"], self._settings)

    def _start_client(self) -> Running:
        result = self._stage.folder / "client.json"
        device = f"tango://{self._stage.tango_host}/{DEVICE}"
        argv = [sys.executable, "-m", "proving.alert_faults.client", device, str(self._journal), str(result)]
        return self._stage.start("client", argv, self._settings)

    def _proxy(self) -> tango.DeviceProxy:
        # One of its own each time: one that has failed waits before it tries again.
        return tango.DeviceProxy(f"tango://{self._stage.tango_host}/{DEVICE}")

    def _answers(self) -> bool:
        """Return whether the device server runs and has read everything."""
        self._revive()
        try:
            tango.DeviceProxy(f"tango://{self._stage.tango_host}/dserver/{SERVER}/alerts").ping()
            return self._proxy().state() != tango.DevState.UNKNOWN
        except tango.DevFailed:
            return False

    def _look_at_memory(self) -> None:
        if self._server is None or not self._server.is_alive:
            return
        try:
            status = Path(f"/proc/{self._server.pid}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return
        peak = next((line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")), "0")
        self.peak_memory = max(self.peak_memory, int(peak) * 1024)

    def _in_words(self, received: int) -> str:
        kills = ", ".join(f"{part} {count}" for part, count in self.kills.items())
        return f"{len(self._sent):,} sent, {received:,} received; killed: {kills}"
