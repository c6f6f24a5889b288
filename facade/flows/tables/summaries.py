"""The forms of the summaries of tables, and their computation from arbitrary bytes."""

import logging
from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from facade.flows.tables.buffers import Content
from facade.flows.tables.messages import encode
from facade.kernel.errors import ConfigError
from facade.kernel.numbers import Natural
from facade.kernel.outcome import RecordRejected
from facade.sdp.messages import Table, TableSegment

_log = logging.getLogger(__name__)

ShownCount = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
"""A number within the range of DevLong."""
Summarise = Callable[[str, str, Content], dict[str, Any] | str]
"""Makes the summary of a table from kind, content type and content; a text is the reason why the table is unusable."""


class SolutionSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of gains or a bandpass; `facade.flows.tables.content` defines each figure."""

    solution_id: str
    kind: str = ""
    source_model: str = ""
    valid_from: Natural | None = None
    """[Unix us]; None: unknown."""
    valid_until: Natural | None = None
    antennas: list[str]
    antenna_count: ShownCount = 0
    channels: ShownCount
    polarisations: list[str] = []
    flagged_fraction: float = 0.0
    not_finite: ShownCount = 0
    snr: float | None = None
    amplitude: list[list[float | None]] = []
    """Amplitudes, antenna by channel; None where everything is flagged."""
    phase: list[list[float | None]] = []
    """[rad]"""
    channel_frequencies: list[float] = []
    """[Hz]"""
    antenna_amplitude: list[float | None] = []
    antenna_phase_rms: list[float | None] = []
    antenna_flagged: list[float] = []

    def __post_init__(self) -> None:
        if any(len({len(row) for row in rows}) > 1 for rows in (self.amplitude, self.phase)):
            raise ValueError("expected rows of one length in amplitude and phase")


class PointingSummary(msgspec.Struct, frozen=True):
    """Summary of pointing offsets."""

    pointing: dict[str, tuple[float, float, float]] = {}
    """Scan id, cross-elevation and elevation offset by dish."""


TableSummary = SolutionSummary | PointingSummary | Any
"""Any other form belongs to a table that was not examined."""
_FORMS: dict[str, Any] = {"gains": SolutionSummary, "bandpass": SolutionSummary, "pointing": PointingSummary}


def typed_summary(table: Table) -> TableSummary:
    """Return the summary of a complete table in the form for its kind, or raise `msgspec.ValidationError`."""
    is_looked_into = isinstance(table.summary, dict) and "note" not in table.summary
    return msgspec.convert(table.summary, _FORMS.get(table.kind, Any) if is_looked_into else Any)


def summary_of(
    summarise: Summarise, header: TableSegment, content: Content, most: int
) -> dict[str, Any] | RecordRejected:
    """Return the summary of a table, of at most `most` bytes of JSON, or the reason why the table is unusable."""
    try:
        summary = summarise(header.kind, header.content_type, content)
    except (ConfigError, OSError) as error:  # an error of this host, not of the table
        _log.warning("no summary table=%s kind=%s reason=%s", header.table, header.kind, error)
        return {"note": f"no summary could be made: {error!s:.500}"}
    except Exception as error:  # any error of a library, caused by the bytes
        _log.exception("summary failed table=%s kind=%s", header.table, header.kind)
        summary = f"{header.kind} as {header.content_type} cannot be read: {type(error).__name__}: {error!s:.200}"
    if isinstance(summary, str):
        return RecordRejected("content", "$", summary)
    if (size := len(encode(summary))) > most:
        return {"note": f"the summary is too large: expected at most {most} bytes, got {size}"}
    return summary
