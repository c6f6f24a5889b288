"""Summaries of tables: the figures of a calibration solution for devices, and pointing offsets.

The picture, `amplitude` and `phase` (antenna x channel), has a row for each of the first 197 antennas, and at most 64
blocks of neighbouring channels, as equal as possible: block b of n begins at channel b * channels // n. A cell counts
the gains that are neither flagged nor beyond float32, of the parallel polarisations (names of two equal letters) if
there are any, else of all. Amplitude is their mean, phase the phase of their complex mean [rad]; null without gains.

Each antenna (up to 512) has the mean amplitude and the RMS of the phase about the mean of its polarisation [rad], both
of the same gains, and the share of all its gains that are flagged or not finite. All numbers are finite, and the whole
is below 1 MB of JSON.
"""

import io
import math
import mmap
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import numpy as np

from facade.flows.tables.buffers import Content
from facade.flows.tables.solution import KINDS, Name, Solution, decode, decode_npy, decode_rows, encode
from facade.flows.tables.summaries import SolutionSummary
from facade.kernel.clock import as_seconds
from facade.kernel.errors import ConfigError
from facade.kernel.numbers import Natural
from facade.kernel.printable import excerpt
from facade.sdp.arrays import Array

__all__ = [
    "ARROW", "JSON", "NPY", "PointingOffset", "Solution", "as_view", "decode", "encode", "encode_pointing", "summarise",
]  # fmt: skip

ARROW: Final = "application/vnd.apache.arrow.stream"
NPY: Final = "application/x-npy"
JSON: Final = "application/json"
MOST_IMAGE: Final = (197, 64)
"""Antennas and blocks of channels of the picture."""
_MOST_NAMES = 512
_HALF = 1 << 16
"""Number of values of half of a float32."""
_MOST_POINTING = 1_000_000
"""Largest table of pointing offsets [bytes]."""

SummaryDict = dict[str, Any]


class PointingOffset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Offset of a dish from its commanded direction [deg]."""

    dish: Name
    scan_id: Natural
    cross_elevation: Annotated[float, msgspec.Meta(ge=-1e6, le=1e6)]
    elevation: Annotated[float, msgspec.Meta(ge=-1e6, le=1e6)]


def summarise(kind: str, content_type: str, content: Content) -> SummaryDict | str:
    """Return the summary of a table, in JSON's types.

    It has only a note if kind or content type is unknown. A text is the reason why the content contradicts itself or
    its kind.
    """
    media = content_type.partition(";")[0].strip().lower()
    known = (
        {(one, ARROW): _arrow for one in KINDS} | {(one, NPY): _npy for one in KINDS} | {("pointing", JSON): _pointing}
    )
    summary: Callable[[str, memoryview], SummaryDict | str] | None = known.get((kind, media))
    if summary is None:
        return {"note": excerpt(f"no summary is made of {kind!s:.100} as {content_type!s:.200}")}
    return summary(kind, as_view(content))


def as_view(content: Content) -> memoryview:
    """Return the bytes of a table, without a copy."""
    if not isinstance(content, Path):
        return content.cast("B")
    with content.open("rb") as file:
        if not content.stat().st_size:  # an empty file cannot be mapped
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _arrow(kind: str, content: memoryview) -> SummaryDict | str:
    solution = decode_rows(content)
    if isinstance(solution, str):
        return solution
    if solution.kind != kind:
        return f"kind: expected {kind}, as the header of the segments says, got {solution.kind}"
    return _summary(solution)


def _npy(kind: str, content: memoryview) -> SummaryDict | str:
    solution = decode_npy(content, kind)
    return solution if isinstance(solution, str) else _summary(solution)


def _pointing(_: str, content: memoryview) -> SummaryDict | str:
    if len(content) > _MOST_POINTING:
        return f"expected at most {_MOST_POINTING} bytes of pointing offsets, got {len(content)}"
    try:
        offsets = msgspec.json.decode(content, type=list[PointingOffset])
    except (msgspec.MsgspecError, ValueError) as error:
        return excerpt(f"expected a list of dish, scan_id, cross_elevation, elevation: {error!s:.200}")
    found = {one.dish: [one.scan_id, one.cross_elevation, one.elevation] for one in offsets}
    if len(found) < len(offsets):
        return f"expected each dish once, got {len(offsets)} offsets of {len(found)} dishes"
    if len(found) > _MOST_NAMES:
        return f"expected at most {_MOST_NAMES} dishes, got {len(found)}"
    return {"pointing": found}


def encode_pointing(offsets: Sequence[PointingOffset]) -> bytes:
    """Write a table of pointing offsets as JSON.

    Examples
    --------
    >>> offsets = [PointingOffset(dish="SKA001", scan_id=17, cross_elevation=0.01, elevation=-0.02)]
    >>> with TableProducer() as tables:
    ...     last = tables.send("subarray/01/pointing", "pointing", encode_pointing(offsets), JSON)
    """
    return msgspec.json.encode(offsets)


class _Counted:
    """The arrays of the summary, filled antenna by antenna."""

    def __init__(self, solution: Solution) -> None:
        antennas, channels, polarisations = solution.gains.shape
        blocks = min(channels, MOST_IMAGE[1])
        self.begins = np.arange(blocks) * channels // blocks
        self._cuts = self.begins * polarisations
        self._parallel = np.tile(_parallel(solution.polarisations), channels)
        self.amplitude, self.phase = np.full((2, antennas, blocks), np.nan)
        self.mean, self.rms, self.flagged = np.full((3, antennas), np.nan)
        self.not_finite = 0

    def add(self, antenna: int, gains: Array, flags: Array) -> Array:
        """Count the gains of one antenna, shape (channels, polarisations); return a mask of usable channels."""
        # Flat: numpy is many times slower with a last axis as short as the polarisations.
        polarisations = gains.shape[1]
        gains = np.ascontiguousarray(gains, np.complex64).reshape(-1)
        amplitude = np.abs(gains)
        finite = np.isfinite(amplitude)
        self.not_finite += finite.size - int(np.count_nonzero(finite))
        usable = finite & ~flags.reshape(-1)
        self.flagged[antenna] = 1 - np.count_nonzero(usable) / usable.size
        counts = usable & self._parallel
        gains, amplitude = np.where(counts, gains, 0), np.where(counts, amplitude, 0)
        number = np.add.reduceat(counts, self._cuts, dtype=np.int64)
        total = np.add.reduceat(amplitude, self._cuts, dtype=np.float64)
        direction = np.add.reduceat(gains, self._cuts, dtype=np.complex128)
        self.amplitude[antenna] = total / number
        self.phase[antenna] = np.where(number, np.angle(direction), np.nan)
        self.mean[antenna] = total.sum() / number.sum()
        self.rms[antenna] = _phase_rms([gains[one::polarisations] for one in range(polarisations)], number.sum())
        channels: Array = np.logical_or.reduce([usable[one::polarisations] for one in range(polarisations)])
        return channels


def _summary(solution: Solution) -> SummaryDict | str:
    gains, snr = solution.gains, solution.snr
    counted = _Counted(solution)
    masks: list[Array] = []
    """Usable channels with a ratio, by antenna, as bits."""
    with np.errstate(all="ignore"):  # numbers that are not finite become null
        for antenna in range(len(gains)):
            usable = counted.add(antenna, gains[antenna], solution.flags[antenna])
            if snr is not None:
                masks.append(np.packbits(usable & np.isfinite(snr[antenna])))

        def ratios() -> Iterator[Array]:
            for antenna, mask in enumerate(masks):
                known = snr[antenna]  # type: ignore[index]
                yield known[np.unpackbits(mask, count=len(known)).view(np.bool_)]

        median = _median(ratios)
    if counted.not_finite == gains.size:
        return f"gains: expected finite ones, got {gains.size} that are infinite or no numbers"
    rows = MOST_IMAGE[0]
    summary = SolutionSummary(
        solution_id=solution.solution_id,
        kind=solution.kind,
        source_model=solution.source_model,
        valid_from=solution.valid_from,
        valid_until=solution.valid_until,
        antennas=list(solution.antennas[:_MOST_NAMES]),
        antenna_count=len(solution.antennas),
        channels=gains.shape[1],
        polarisations=list(solution.polarisations),
        flagged_fraction=_digits(counted.flagged.mean()),
        not_finite=counted.not_finite,
        snr=_number(median),
        amplitude=[_numbers(row) for row in counted.amplitude[:rows]],
        phase=[_numbers(row.round(4)) for row in counted.phase[:rows]],
        channel_frequencies=_block_means(solution.frequencies, counted.begins),
        antenna_amplitude=_numbers(counted.mean[:_MOST_NAMES]),
        antenna_phase_rms=_numbers(counted.rms[:_MOST_NAMES].round(4)),
        antenna_flagged=[_digits(value) for value in counted.flagged[:_MOST_NAMES].tolist()],
    )
    found: SummaryDict = msgspec.to_builtins(summary)
    return found


def _median(parts: Callable[[], Iterable[Array]]) -> float:
    """Return the median of numbers in parts, as float32, without a copy of all; NaN if there are none.

    The numbers are counted by the first half of their bits, and those of the median's halves by the second one.
    """

    def counts(begin: int | None = None) -> Array:
        found = np.zeros(_HALF, np.int64)
        for part in parts():
            bits = part.astype(np.float32).view(np.uint32)
            keys = np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31))  # in the order of the numbers
            chosen = keys >> 16 if begin is None else keys[keys >> 16 == begin] & (_HALF - 1)
            found += np.bincount(chosen, minlength=_HALF)
        return found

    highs = np.cumsum(counts())
    if not (number := int(highs[-1])):
        return math.nan
    found = []
    for rank in ((number - 1) // 2, number // 2):
        high = int(np.searchsorted(highs, rank, side="right"))
        before = int(highs[high - 1]) if high else 0
        low = int(np.searchsorted(np.cumsum(counts(high)), rank - before, side="right"))
        key = high << 16 | low
        bits = key ^ (1 << 31) if key >> 31 else key ^ 0xFFFFFFFF
        found.append(float(np.array(bits, np.uint32).view(np.float32)))
    return sum(found) / 2


def _parallel(polarisations: tuple[str, ...]) -> Array:
    parallel = np.array([len(name) == 2 and name[0] == name[1] for name in polarisations])
    return parallel if parallel.any() else ~parallel


def _phase_rms(polarisations: Sequence[Array], number: int) -> float:
    """Return the RMS of the phase about the mean of its polarisation; uncounted gains are 0."""
    squares = 0.0
    turn = np.float32(2 * np.pi)
    for gains in polarisations:
        gains = gains[gains != 0]
        phase = np.angle(gains) - np.float32(np.angle(gains.sum(dtype=np.complex128)))
        phase -= turn * np.round(phase / turn)
        squares += float(np.vdot(phase, phase))
    return math.sqrt(squares / number) if number else math.nan


def _block_means(frequencies: Array, begins: Array) -> list[float]:
    if not len(frequencies):
        return []
    lengths = np.diff(begins, append=len(frequencies))
    means: list[float] = (np.add.reduceat(frequencies, begins) / lengths).tolist()
    return means


def _numbers(values: Array) -> list[float | None]:
    return [_number(value) for value in values.tolist()]


def _number(value: float) -> float | None:
    return _digits(value) if math.isfinite(value) else None


def _digits(value: float) -> float:
    return float(f"{value:.5g}")


_INK, _MUTED, _NOTHING = "#1f2933", "#6b7785", "#a9a9a9"
_MOST_LABELS: Final = 20
"""Most antennas named beside the rows."""
_EVEN, _TURN = "viridis", "twilight_shifted"
"""Colour maps for amplitudes, and for phases, which are cyclic."""


def picture(summary: SummaryDict) -> bytes:
    """Draw the summary of gains or a bandpass as a PNG, antenna x channel; unknown cells are grey."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError as error:
        raise ConfigError("pictures need matplotlib: pip install 'sdp-tango-facade[tables]'") from error
    if "amplitude" not in summary or "phase" not in summary:
        raise ValueError(f"picture: expected amplitude and phase in the summary, got {', '.join(summary)!s:.200}")
    figure = Figure(
        figsize=(12, 6.4), dpi=110, facecolor="white", layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08)
    )
    title = ", ".join(filter(None, (f"{summary['kind']} {summary['solution_id']}".rstrip(), summary["source_model"])))
    figure.suptitle(title, x=0.012, ha="left", fontsize=13, fontweight="bold", color=_INK)
    left, right = figure.subplots(1, 2)
    amplitude, phase = (np.array(summary[name], np.float64) for name in ("amplitude", "phase"))
    _panel(figure, left, summary, amplitude, "Amplitude", _EVEN, _limits(amplitude))
    _panel(figure, right, summary, phase, "Phase [rad]", _TURN, (-np.pi, np.pi))
    figure.supxlabel(_caption(summary), x=0.012, ha="left", fontsize=9, color=_MUTED)
    out = io.BytesIO()
    figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


def _panel(
    figure: Any, axes: Any, summary: SummaryDict, values: Any, name: str, colours: str, limits: tuple[float, float]
) -> None:
    axes.set_facecolor(_NOTHING)
    low, high, unit = _channel_span(summary, values.shape[1])
    image = axes.imshow(
        values,
        aspect="auto",
        interpolation="nearest",
        cmap=colours,
        vmin=limits[0],
        vmax=limits[1],
        extent=(low, high, len(values) - 0.5, -0.5),
    )
    rows = range(0, len(values), -(-len(values) // _MOST_LABELS))
    axes.set_yticks(list(rows), [summary["antennas"][row] for row in rows])
    axes.set_title(name, loc="left", fontsize=11, color=_INK)
    axes.set_xlabel(unit, fontsize=10, color=_INK)
    bar = figure.colorbar(image, ax=axes, pad=0.02, fraction=0.04, aspect=34)
    bar.outline.set_visible(False)
    if colours == _TURN:
        bar.set_ticks([-np.pi, -np.pi / 2, 0, np.pi / 2, np.pi], labels=["-π", "-π/2", "0", "π/2", "π"])
    for part in (axes, bar.ax):
        part.tick_params(labelsize=8, colors=_MUTED, length=3)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _limits(values: Any) -> tuple[float, float]:
    known = values[np.isfinite(values)]
    if not len(known):
        return 0.0, 1.0
    low, high = np.percentile(known, (1, 99))
    return (float(low), float(high)) if high > low else (float(low) - 0.5, float(high) + 0.5)


def _channel_span(summary: SummaryDict, blocks: int) -> tuple[float, float, str]:
    frequencies = summary["channel_frequencies"]
    if len(frequencies) < 2:
        return 0.0, float(summary["channels"]), "channel"
    half = (frequencies[-1] - frequencies[0]) / (blocks - 1) / 2
    return (frequencies[0] - half) / 1e6, (frequencies[-1] + half) / 1e6, "frequency [MHz]"


def _caption(summary: SummaryDict) -> str:
    size = f"{summary['antenna_count']} antennas x {summary['channels']} channels x {len(summary['polarisations'])}"
    parts = [f"{size} polarisations", f"{summary['flagged_fraction']:.1%} flagged"]
    if summary["snr"] is not None:
        parts.append(f"median S/N {summary['snr']:.3g}")
    if summary["valid_from"] is not None:
        begin, end = (datetime.fromtimestamp(as_seconds(summary[name]), UTC) for name in ("valid_from", "valid_until"))
        parts.insert(0, f"valid {begin:%Y-%m-%d %H:%M:%S} to {end:%Y-%m-%d %H:%M:%S} UTC")
    return "   ".join([*parts, "grey: nothing that is not flagged"])
