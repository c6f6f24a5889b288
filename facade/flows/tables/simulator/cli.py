"""`sdp-facade simulate calibration`: a calibration pipeline that solves for gains, again and again."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from facade.flows.tables.content import ARROW, JSON, PointingOffset, encode, encode_pointing
from facade.flows.tables.producer import TableProducer
from facade.flows.tables.solution import KINDS, MOST_CHANNELS, Solution
from facade.kernel.bus.kafka.bus import KafkaBus
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.clock import SystemClock, Time, as_duration, to_ms
from facade.kernel.config import load_settings
from facade.kernel.console import ERR, OUT
from facade.kernel.errors import BusError, ConfigError
from facade.kernel.runtime.stopping import stopping
from facade.sdp.arrays import Array
from facade.sdp.messages import TableSegment
from facade.simulate.array import MID, SimulatedArray, array_of, bandpass

_PHASE, _PHASE_APART = 0.9, 0.1
"""Spread of the phases, and of the polarisations of one antenna [rad]."""
_PHASE_WALK = 0.03
"""Change of phases in a minute [rad]."""
_AMPLITUDE_WALK = 0.002
"""Relative change of amplitudes in a minute."""
_DELAY, _DELAY_WALK = 0.6e-9, 0.02e-9
"""Spread of the delays, and their change in a minute [s]."""
_SNR = 80.0
_POINTING, _POINTING_WALK = 0.01, 0.001
"""Spread of the pointing offsets, and their change from scan to scan [deg]."""


def channels_for(megabytes: float, *, antennas: int, polarisations: int = 2) -> int:
    """Return the number of channels of an Arrow table of this size [10^6 bytes]."""
    frequency = 20  # bytes, as JSON
    channel = antennas * (8 * polarisations + polarisations / 8 + 4) + frequency
    return max(round(megabytes * 1e6 / channel), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SolutionScenario:
    """Parameters of the simulated solutions."""

    seed: int = 1
    kind: str = "gains"
    array: SimulatedArray = MID
    antennas: int = len(MID.receptors)
    channels: int = 1024
    polarisations: tuple[str, ...] = ("XX", "YY")
    interval: float = 600.0
    """Duration of a solution's validity [s]."""
    failed: float = 0.03
    """Share of completely flagged antennas; never the first one."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"kind: expected one of {', '.join(KINDS)}, got {self.kind}")
        if not 1 <= self.channels <= MOST_CHANNELS:
            raise ConfigError(f"expected 1 to {MOST_CHANNELS} channels, got {self.channels}")


class SolutionSeries:
    """Generates solutions, one after the other."""

    def __init__(self, scenario: SolutionScenario) -> None:
        self.scenario = scenario
        self.solved = 0
        self._dice = np.random.default_rng(scenario.seed)
        self._names = scenario.array.names(scenario.antennas)
        self._frequencies = np.linspace(*scenario.array.band, scenario.channels)
        self._interference = scenario.array.has_interference(self._frequencies)
        shape = (scenario.antennas, len(scenario.polarisations))
        self._phase = self._walk(shape, _PHASE, _PHASE_APART)
        self._amplitude = 1 + 0.05 * self._dice.standard_normal(shape)
        self._delay = _DELAY * self._dice.standard_normal(scenario.antennas)
        self._snr = _SNR * self._dice.uniform(0.7, 1.3, scenario.antennas)
        self._failed = self._dice.random(scenario.antennas) < scenario.failed
        self._failed[0] = False
        self._shape = self._bandpass()

    def next(self, now_us: Time) -> Solution:
        """Return the next solution, valid from now on."""
        scenario = self.scenario
        if self.solved:
            self._drift()
        self.solved += 1
        shape = (scenario.antennas, scenario.channels, len(scenario.polarisations))
        gains = np.empty(shape, np.complex64)
        snr = np.empty(shape[:2], np.float32)
        for antenna in range(scenario.antennas):
            gains[antenna], snr[antenna] = self._antenna(antenna)
        flags = np.broadcast_to((self._failed[:, np.newaxis] | self._interference)[:, :, np.newaxis], shape).copy()
        return Solution(
            solution_id=f"sim-{scenario.seed}-{self.solved:06d}",
            kind=scenario.kind,
            source_model="J1939-6342",
            valid_from=int(now_us),
            valid_until=int(now_us + as_duration(scenario.interval)),
            antennas=self._names,
            frequencies=self._frequencies,
            polarisations=scenario.polarisations,
            gains=gains,
            flags=flags,
            snr=snr,
        )

    def _bandpass(self) -> Array:
        place = np.linspace(0, 1, self.scenario.channels)
        if self.scenario.kind == "gains":
            return 1 + 0.01 * np.cos(2 * np.pi * 3 * place)
        return bandpass(self.scenario.channels)

    def _drift(self) -> None:
        step = np.sqrt(self.scenario.interval / 60)
        self._phase += self._walk(self._phase.shape, _PHASE_WALK * step, _PHASE_WALK * step / 10)
        self._delay += _DELAY_WALK * step * self._dice.standard_normal(self._delay.shape)
        change = _AMPLITUDE_WALK * step * self._dice.standard_normal(self._amplitude.shape)
        self._amplitude += change - 0.01 * (self._amplitude - 1)

    def _walk(self, shape: tuple[int, int], common: float, apart: float) -> Array:
        atmosphere = common * self._dice.standard_normal((shape[0], 1))
        phase: Array = atmosphere + apart * self._dice.standard_normal(shape)
        return phase

    def _antenna(self, antenna: int) -> tuple[Array, Array]:
        """Return gains, shape (channels, polarisations), and signal-to-noise ratios of one antenna."""
        size = (self.scenario.channels, len(self.scenario.polarisations))
        noise = self._dice.standard_normal((*size, 2), np.float32).view(np.complex64)[..., 0] / np.float32(np.sqrt(2))
        snr = (self._snr[antenna] * self._shape).astype(np.float32)
        if self._failed[antenna]:
            return noise, np.zeros_like(snr)
        slope = (
            2
            * np.pi
            * (self._delay[antenna] - self._delay[0])
            * (self._frequencies - np.mean(self.scenario.array.band))
        )
        phase = self._phase[antenna] - self._phase[0] + slope[:, np.newaxis]
        gains = (self._amplitude[antenna] * self._shape[:, np.newaxis] * np.exp(1j * phase)).astype(np.complex64)
        snr[self._interference] = 0
        gains += noise * np.where(self._interference, 3, 1 / _SNR)[:, np.newaxis].astype(np.float32)
        return gains, snr


class PointingSeries:
    """Generates the pointing offsets of dishes, scan after scan."""

    def __init__(self, dishes: Sequence[str], *, seed: int = 1, first_scan: int = 1) -> None:
        self._dishes, self._scan = tuple(dishes), first_scan
        self._dice = np.random.default_rng(seed)
        self._offsets = _POINTING * self._dice.standard_normal((len(self._dishes), 2))

    def next(self) -> list[PointingOffset]:
        """Return the offsets of the next scan."""
        offsets = [
            PointingOffset(dish, self._scan, *pair)
            for dish, pair in zip(self._dishes, self._offsets.tolist(), strict=True)
        ]
        self._scan += 1
        self._offsets += _POINTING_WALK * self._dice.standard_normal(self._offsets.shape)
        return offsets


EPILOG = """
Examples:

sdp-facade simulate calibration --every 10
# until Ctrl-C, every 10 s a table of gains of 20 MB for subarray 01, which drift, and pointing offsets of all dishes

sdp-facade simulate calibration --kind bandpass --megabytes 100 --count 1
# one bandpass table of 100 MB; both need a worker that assembles: sdp-facade tables assemble
"""


def calibration(
    subarray: Annotated[int, typer.Option(min=1, max=16, help="Subarray of the products subarray/NN/...")] = 1,
    kind: Annotated[str, typer.Option(help="gains or bandpass.")] = "gains",
    every: Annotated[float, typer.Option(min=0, help="Seconds between two tables.")] = 10.0,
    count: Annotated[int | None, typer.Option(min=1, help="Stop after this many. Default: at Ctrl-C.")] = None,
    megabytes: Annotated[float, typer.Option(min=0.01, max=1000, help="Size of a table.")] = 20.0,
    antennas: Annotated[int, typer.Option(min=1, max=512)] = 64,
    pointing: Annotated[bool, typer.Option(help="Also send pointing offsets, if there are dishes.")] = True,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same gains.")] = 1,
    save: Annotated[
        Path | None, typer.Option(help="Folder for a copy of each table, to compare with the fetched ones.")
    ] = None,
) -> None:
    """Simulate a calibration pipeline: it sends tables of gains, and pointing offsets.

    The table's id goes to standard output, one line for each, once all of it is on the bus.

    The exit code is 1 if a table was not sent.
    """
    clock, product, settings = SystemClock(), f"subarray/{subarray:02d}", load_settings()
    scenario = SolutionScenario(
        seed=seed,
        kind=kind,
        array=array_of(settings.telescope),
        antennas=antennas,
        channels=channels_for(megabytes, antennas=antennas),
        interval=max(every, 60.0),
    )
    if save is not None:
        save.mkdir(parents=True, exist_ok=True)
    series, offsets = SolutionSeries(scenario), PointingSeries(scenario.array.names(antennas), seed=seed)
    bus = KafkaBus(Connection(settings, clock=clock), client="simulate-calibration")
    tables, lost = TableProducer(bus.writer(), clock), 0
    with stopping() as stopped:
        while not stopped() and (count is None or series.solved < count):
            begin = clock.monotonic()
            content = encode(series.next(clock.now_us()))
            name = f"{series.scenario.kind}-{subarray:02d}-{to_ms(clock.now_us())}"
            try:
                sent = tables.send(f"{product}/{kind}", kind, content, ARROW, table=name)
                if pointing and scenario.array.turns:
                    tables.send(f"{product}/pointing", "pointing", encode_pointing(offsets.next()), JSON)
            except BusError as error:  # the next one may succeed; this one is reported as lost
                ERR.print(f"table {name} was not sent: {error}", style="red", markup=False)
                lost += 1
                continue
            if save is not None:
                part = save / f"{name}.part"
                part.write_bytes(content)
                part.replace(save / name)  # the folder has only whole copies
            _tell(sent, clock.monotonic() - begin)
            while not stopped() and clock.monotonic() - begin < every and series.solved != count:
                clock.sleep(0.1)
    if lost:
        raise typer.Exit(1)


def _tell(sent: TableSegment, took: float) -> None:
    OUT.print(sent.table, markup=False)
    ERR.print(
        f"{sent.table} of {sent.product}: {sent.size:,} B in {sent.count} segments, solved and sent in {took:.2f} s",
        markup=False,
    )
