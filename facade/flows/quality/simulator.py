"""`sdp-facade simulate quality`: a receive pipeline that measures the quality of its data, again and again.

Noise, flags and spectra drift. Antennas differ in their noise, which walks; one of them is bad: four times as noisy,
and much of its data flagged. Channels with known interference from satellites and aircraft are flagged, more or less
from round to round. The same seed gives the same series.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, get_args

import numpy as np
import typer

from facade.flows.quality.records import QUALITY, encode_metric
from facade.kernel.bus.kafka.bus import KafkaBus
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.port import Record
from facade.kernel.clock import SystemClock, Time
from facade.kernel.config import MOST_SUBARRAYS, load_settings
from facade.kernel.console import ERR
from facade.kernel.errors import ConfigError
from facade.kernel.runtime.stopping import stopping
from facade.sdp.arrays import Array
from facade.sdp.messages import MetricEncoding
from facade.simulate.array import MID, SimulatedArray, array_of, bandpass

MOST_ANTENNAS = 512
_MOST_CHANNELS = 65_536
_MOST_RECORD = 4_000_000
"""Largest array [bytes]; the topic takes a little more."""
_FLUX, _NOISE, _BAD = 12.0, 3.0, 4.0
"""Amplitude of the source, noise of an antenna [Jy], and noise factor of the bad antenna."""
_WALK = 0.01
"""Relative change of the noise from round to round."""
_AXES_EVERY = 10
"""Rounds between two records of the axes."""
_CHANNELS = 1024
_LAST = 30.0
"""Longest wait for the last records [s]."""
EPILOG = """
Examples:

sdp-facade simulate quality
# until Ctrl-C, once per second, all metrics of subarray 01: 64 antennas, one of them bad, and interference

sdp-facade simulate quality --encoding msgpack-numpy --megabytes-per-second 5 --rate 2
# 5 MB/s, as SKA's receive pipelines write arrays
"""


def channels_for(megabytes: float, *, antennas: int) -> int:
    """Return the number of channels for rounds of a size [MB, 10^6 bytes]."""
    number = megabytes * 1e6 / 4
    channels = math.floor((number - 2 * antennas**2 - 2 * antennas) / (antennas + 2))
    most = min(_MOST_CHANNELS, _MOST_RECORD // (4 * antennas))
    if not 1 <= channels <= most:
        low, high = (_megabytes(antennas, one) for one in (1, most))
        raise ConfigError(
            f"expected {low:.3f} to {high:.1f} MB in a round of {antennas} antennas, got {megabytes:g} MB:"
            " change the rate of the rounds or the number of antennas"
        )
    return channels


def _megabytes(antennas: int, channels: int) -> float:
    return 4e-6 * (2 * antennas**2 + 2 * antennas + (antennas + 2) * channels)


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityScenario:
    """A simulated measurement."""

    seed: int = 1
    subarray: int = 1
    array: SimulatedArray = MID
    antennas: int = 64
    channels: int = 1024
    encoding: MetricEncoding = "npy"
    scan_id: int = 1


class QualitySeries:
    """Generates metrics, round after round."""

    def __init__(self, scenario: QualityScenario) -> None:
        self.scenario = scenario
        self.rounds = 0
        self._dice = np.random.default_rng(scenario.seed)
        self._frequencies = np.linspace(*scenario.array.band, scenario.channels)
        self._interference = scenario.array.has_interference(self._frequencies)
        self._noise = _NOISE * self._dice.uniform(0.8, 1.2, scenario.antennas)
        self._flagged = self._dice.uniform(0.0, 0.03, scenario.antennas)
        self.bad = int(self._dice.integers(1, scenario.antennas))
        self._noise[self.bad] *= _BAD
        self._flagged[self.bad] = 0.6

    def next(self, now_us: Time) -> Iterator[Record]:
        """Return the metrics of the next round."""
        scenario = self.scenario
        metrics = self._axes() if self.rounds % _AXES_EVERY == 0 else {}
        self.rounds += 1
        self._noise *= np.exp(_WALK * self._dice.standard_normal(scenario.antennas))
        metrics |= self._flags() | self._noises() | self._spectra()
        for name, (array, unit) in metrics.items():
            yield encode_metric(
                array,
                subarray=scenario.subarray,
                metric=name,
                time=int(now_us),
                unit=unit,
                encoding=scenario.encoding,
                scan_id=scenario.scan_id,
                source=f"sim-quality-{scenario.seed}",
                sequence=self.rounds - 1,
            )

    def _axes(self) -> dict[str, tuple[Array, str]]:
        return {
            "antennaNames": (np.array(self.scenario.array.names(self.scenario.antennas)), ""),
            "channelFrequencies": (self._frequencies, "Hz"),
            "visibilityFrequencies": (self._frequencies, "Hz"),
        }

    def _flags(self) -> dict[str, tuple[Array, str]]:
        """Return flagged fractions: of the time of each antenna, and of the antennas of each channel."""
        antennas = np.clip(self._flagged + self._dice.normal(0, 0.003, len(self._flagged)), 0, 1)
        channels = np.where(self._interference, self._dice.uniform(0.7, 1.0, len(self._interference)), 0.01)
        left = 1 - channels.mean()
        baselines = 1 - np.outer(1 - antennas, 1 - antennas) * left
        return {
            "flaggedFraction": (np.asarray(baselines.mean()), ""),
            "flaggedFractionAntenna": (_small(1 - (1 - antennas) * left), ""),
            "flaggedFractionBaseline": (_small(baselines), ""),
            "flaggedFractionChannel": (_small(1 - (1 - channels) * (1 - antennas.mean())), ""),
        }

    def _noises(self) -> dict[str, tuple[Array, str]]:
        baselines = np.sqrt(np.outer(self._noise, self._noise))
        baselines *= self._dice.normal(1, 0.02, baselines.shape)
        np.fill_diagonal(baselines, np.nan)
        return {"noiseAntenna": (_small(self._noise), "Jy"), "noiseBaseline": (_small(baselines), "Jy")}

    def _spectra(self) -> dict[str, tuple[Array, str]]:
        shape = bandpass(self.scenario.channels)
        size = (self.scenario.antennas, self.scenario.channels)
        amplitude = np.float32(0.1) * self._dice.standard_normal(size, np.float32) * _small(self._noise)[:, np.newaxis]
        amplitude += _small(_FLUX * shape)
        amplitude[:, self._interference] = np.nan
        solved = shape / np.median(shape) * self._dice.normal(1, 0.003, shape.shape)
        return {"visibilityAmplitude": (amplitude, "Jy"), "bandpassSpectrum": (_small(solved), "")}


def _small(values: Array) -> Array:
    return values.astype(np.float32)


def quality(
    subarray: Annotated[int, typer.Option(min=1, max=MOST_SUBARRAYS, help="Subarray of the data.")] = 1,
    rate: Annotated[float, typer.Option(min=0.01, max=1000, help="Rounds/s; each has all metrics once.")] = 1.0,
    antennas: Annotated[int, typer.Option(min=2, max=MOST_ANTENNAS)] = 64,
    encoding: Annotated[str, typer.Option(help=f"One of {', '.join(get_args(MetricEncoding))}.")] = "npy",
    megabytes_per_second: Annotated[
        float | None, typer.Option(min=0.001, help=f"Sets the number of channels. Default: {_CHANNELS} channels.")
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, help="Stop after this many rounds. Default: at Ctrl-C.")] = None,
    scan_id: Annotated[int, typer.Option(min=0, help="Scan to which the data belong.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same metrics.")] = 1,
) -> None:
    """Simulate a receive pipeline: it sends flags, noise and spectra of one subarray, as arrays.

    The exit code is 1 if a record was not delivered.
    """
    chosen: MetricEncoding | None = next((one for one in get_args(MetricEncoding) if one == encoding), None)
    if chosen is None:
        raise typer.BadParameter(f"expected one of {', '.join(get_args(MetricEncoding))}, got {encoding}")
    channels = (
        _CHANNELS if megabytes_per_second is None else channels_for(megabytes_per_second / rate, antennas=antennas)
    )
    settings = load_settings()
    scenario = QualityScenario(
        seed=seed,
        subarray=subarray,
        array=array_of(settings.telescope),
        antennas=antennas,
        channels=channels,
        encoding=chosen,
        scan_id=scan_id,
    )
    series, clock = QualitySeries(scenario), SystemClock()
    writer = KafkaBus(Connection(settings, clock=clock), client="simulate-quality").writer()
    begin, records, size = clock.monotonic(), 0, 0
    with stopping() as stopped:
        while not stopped() and (count is None or series.rounds < count):
            for record in series.next(clock.now_us()):
                writer.send(record)
                records, size = records + 1, size + len(record.value or b"")
            while not stopped() and (left := begin + series.rounds / rate - clock.monotonic()) > 0:
                clock.sleep(min(left, 0.1))
    writer.close(_LAST)
    took = max(clock.monotonic() - begin, 1e-3)
    ERR.print(f"sent {records:,} metrics in {series.rounds:,} rounds, {size / 1e6 / took:.2f} MB/s", markup=False)
    if not writer.settled(writer.mark()) or writer.failures(QUALITY):
        ERR.print("[red]not all of them were delivered")
        raise typer.Exit(1)
