"""Draws the summary of a calibration solution: amplitude and phase, antenna x channel, as a PNG."""

import io
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np

from facade.errors import ConfigError
from facade.flows.tables.content import SummaryDict

_INK, _MUTED, _NOTHING = "#1f2933", "#6b7785", "#a9a9a9"
_MOST_LABELS: Final = 20
"""Antennas that are named beside the rows."""
_EVEN, _TURN = "viridis", "twilight_shifted"
"""Colour maps: one for what grows, one for what comes back to where it began."""


def picture(summary: SummaryDict) -> bytes:
    """Draw what `facade.flows.tables.content.summarise` gave for gains or a bandpass; grey is where nothing is known.

    Raises
    ------
    ConfigError
        The drawing library is not installed.
    ValueError
        It is the summary of something else.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError as error:  # an extra; slow to import, and needed by nobody else
        raise ConfigError("pictures need matplotlib: pip install 'sdp-tango-facade[tables]'") from error
    if "amplitude" not in summary or "phase" not in summary:
        raise ValueError(f"picture: expected amplitude and phase in the summary, got {', '.join(summary)!s:.200}")
    figure = Figure(
        figsize=(12, 6.4), dpi=110, facecolor="white", layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08)
    )
    figure.suptitle(_title(summary), x=0.012, ha="left", fontsize=13, fontweight="bold", color=_INK)
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
    """Return the range of the colours: what all but the extremes have."""
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


def _title(summary: SummaryDict) -> str:
    name = f"{summary['kind']} {summary['solution_id']}".rstrip()
    return f"{name}, {summary['source_model']}" if summary["source_model"] else name


def _caption(summary: SummaryDict) -> str:
    size = f"{summary['antenna_count']} antennas x {summary['channels']} channels x {len(summary['polarisations'])}"
    parts = [f"{size} polarisations", f"{summary['flagged_fraction']:.1%} flagged"]
    if summary["snr"] is not None:
        parts.append(f"median S/N {summary['snr']:.3g}")
    if summary["valid_from"] is not None:
        begin, end = (datetime.fromtimestamp(summary[name] / 1e6, UTC) for name in ("valid_from", "valid_until"))
        parts.insert(0, f"valid {begin:%Y-%m-%d %H:%M:%S} to {end:%Y-%m-%d %H:%M:%S} UTC")
    return "   ".join([*parts, "grey: nothing that is not flagged"])
