"""The fault run of the alerts: they are sent in bursts while device server and broker are killed, to a slow client."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import msgspec
import tango
import typer

from facade.bus.kafka.producer import KafkaStreamWriter
from facade.bus.port import BusHealth
from facade.flows.alerts.messages import ALERTS, alert_record
from facade.infra.processes import Process
from proving import gauges
from proving.deployment import Deployment
from proving.fault_runs.alert_account import Found, account
from proving.fault_runs.alert_scenario import AlertScenario, digest
from proving.fault_runs.follower import FollowerReport, count_entries, read_entries
from proving.fault_runs.frame import (
    BROKER,
    READY_WITHIN,
    SERVER,
    Account,
    FaultRun,
    Folder,
    Seed,
    play,
    process_name,
)

_QUICK, _QUICK_BURST, _QUICK_KILLS = 20_000, 2_000, 2
_AHEAD = 50_000
"""The client is never further behind the newest alert than this: the device keeps the newest 100,000."""
_BURSTS = 4
"""Of so many bursts at most the client lacks entries when the next one is sent."""
_STANDSTILL = 90.0
"""Without a new entry at the client for so long, what is missing counts as lost [s]."""


class AlertFaultRun(FaultRun):
    """One run of the alerts.

    Parameters
    ----------
    kills
        How often the device server is killed, and how often the broker.
    """

    faults = (SERVER, BROKER)
    between = (0.0, 0.0)

    def __init__(self, deployment: Deployment, *, alerts: int, burst: int, kills: int, seed: int) -> None:
        super().__init__(deployment, seed)
        self._alerts, self._burst = alerts, burst
        self._device = deployment.devices("SdpAlerts")[0]
        self._journal = deployment.folder / "received.bin"
        self._scenario = AlertScenario(seed, round(self.clock.now() * 1e6))
        self._sent: list[tuple[str, bytes]] = []
        self._received = 0
        self._patience = 0
        """The next burst comes when the client is at most so far behind."""
        self._due = sorted((self.chance.uniform(0.0, 1.0) * (alerts - burst), part) for part in self.faults * kills)
        """At how many received entries which part is killed; the last burst is sent when all that is done."""
        self._peak = 0.0
        """Memory of the device server, over all its lives [MB]."""

    def parts(self) -> Mapping[str, Callable[[], Process]]:
        """Return the device server."""
        return {SERVER: lambda: self.deployment.server("alerts", name=process_name(SERVER))}

    def begin(self) -> None:
        """Let the client begin as soon as there is somebody to answer."""
        self.demand(self._answers, READY_WITHIN, SERVER)
        device = f"tango://{self.deployment.tango_host}/{self._device}"
        self._client = self.deployment.play("follow-alerts", device=device, journal=str(self._journal))
        self._writer = KafkaStreamWriter(self.deployment.connection, health=BusHealth(), client="sources")
        self._began = self._moved = self.clock.monotonic()

    def step(self) -> bool:
        """Send, until the client has everything, or gets nothing any more."""
        # What the client does not get counts as received, or the others could never be all.
        received = count_entries(self._journal) + len(self._scenario.refused)
        if received != self._received:
            self._received, self._moved = received, self.clock.monotonic()
        is_stuck = self.clock.monotonic() - self._moved > _STANDSTILL
        if is_stuck or not self._client.is_alive:
            self.progress.step(f"  nothing more comes: {self.in_words()}; {self._client.tail()}")
        if is_stuck or not self._client.is_alive or received >= self._alerts:
            self._writer.flush(READY_WITHIN)
            self._seconds = self.clock.monotonic() - self._began
            return False
        self._peak = max(self._peak, gauges.peak_resident(self.deployment.processes[process_name(SERVER)].pid))
        self._writer.poll()
        left = self._alerts - len(self._sent)
        may_send = left > self._burst or (left > 0 and not self._due)
        if may_send and len(self._sent) - received <= self._patience:
            self._send(min(self._burst, left))
        return True

    def due(self) -> str:
        """Return the part that is killed after so many received entries."""
        return self._due.pop(0)[1] if self._due and self._received >= self._due[0][0] else ""

    def in_words(self) -> str:
        """Say how many were sent and received."""
        return f"{len(self._sent):,} sent, {self._received:,} received"

    def account(self) -> Account:
        """Hold what was sent against what the client got and what the device shows."""
        self.demand(self._answers, READY_WITHIN, SERVER)
        shown = msgspec.json.decode(self.deployment.proxy(self._device).command_inout("GetAlarms"))
        self._client.call_off()
        client = self.deployment.result(self._client, FollowerReport, 60.0)
        made = account(
            Found(
                sent=self._sent,
                refused=self._scenario.refused,
                client=client,
                received=read_entries(self._journal),
                wanted=self._scenario.alarms,
                shown=shown,
            )
        )
        made.rows += [
            ("from the first one sent to the last one received", f"{self._seconds:,.0f} s"),
            ("slowest recovery: longest silence at the client", f"{client.silence:.1f} s"),
            ("longest absence of the broker after its kill", f"{self.broker_away:.1f} s"),
            ("peak memory of the device server", f"{self._peak:,.0f} MB"),
        ]
        return made

    def _send(self, count: int) -> None:
        records = []
        for message in self._scenario.records(count):
            self._sent.append((message.source, digest(message)))
            records.append(alert_record(message))
        self._writer.send_many(ALERTS, [record.key for record in records], [record.value for record in records])
        self._patience = self.chance.randint(0, min(_BURSTS * self._burst, _AHEAD - self._burst))

    def _answers(self) -> bool:
        """Return whether the device server runs and has read everything."""
        try:
            return self.deployment.answers("alerts") and (
                self.deployment.proxy(self._device).state() != tango.DevState.UNKNOWN
            )
        except tango.DevFailed:
            return False


def alert_faults(
    alerts: Annotated[int, typer.Option(min=1, help="Alerts and actions to send in all.")] = 1_000_000,
    burst: Annotated[int, typer.Option(min=1, max=50_000, help="Number of alerts sent at once.")] = 10_000,
    kills: Annotated[int, typer.Option(min=0, help="kill -9 of the device server, and of the broker.")] = 10,
    seed: Seed = 1,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help=f"Only {_QUICK:,} alerts, in bursts of {_QUICK_BURST:,}, and {_QUICK_KILLS} kills of each."
        ),
    ] = False,
    folder: Folder = Path(".run"),
) -> None:
    """Send a million alerts while device server and broker are killed (kill -9), to a client that is slow at times.

    The exit code is 1 when the client has not got exactly what was sent, in order for each source, or
    when an alarm is in another state than what was sent says.

    Example: sdp-facade alert-faults --quick
    """
    alerts, burst, kills = (_QUICK, _QUICK_BURST, _QUICK_KILLS) if quick else (alerts, burst, kills)
    play(
        lambda deployment: AlertFaultRun(deployment, alerts=alerts, burst=burst, kills=kills, seed=seed),
        f"{alerts:,} alerts in bursts of {burst:,}, seed {seed}",
        "the client has exactly what was sent, each once and in order; each alarm is in the state that it says",
        folder,
        "alert-faults",
        nodes=1,
    )
