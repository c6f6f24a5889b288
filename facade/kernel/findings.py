"""Findings about the deployment: a level, the problem, and the remedy."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from facade.kernel.printable import printable

OK, DEGRADED, FAILED, UNKNOWN = "OK", "DEGRADED", "FAILED", "UNKNOWN"
ATTENTION = "ATTENTION"
"""Level of a finding that no longer harms the deployment, but waits for a person."""
NOTE = "NOTE"
"""Level of a finding that leaves the deployment OK."""
EXIT_CODES: Final = {OK: 0, DEGRADED: 1, FAILED: 2, UNKNOWN: 3, ATTENTION: 4}
STYLES: Final = {
    OK: "bold green",
    DEGRADED: "bold yellow",
    FAILED: "bold red",
    UNKNOWN: "bold magenta",
    ATTENTION: "bold cyan",
    NOTE: "dim",
}
RANKS = (FAILED, UNKNOWN, DEGRADED, ATTENTION, NOTE)
"""The worst first: certain failures, then unknown states."""


class Finding(NamedTuple):
    """A problem or a note."""

    level: str
    about: str
    """Device, device server, alarm, topic, group ..."""
    text: str
    do: str = ""
    """Remedy; empty: the text has it."""
    see: str = ""
    """Entry of docs/reference with details; empty: none."""
    severity: str = ""
    """Severity of its alarm, or of an alarm as grave; empty: not given."""
    alarm: str = ""
    """Its alarm, as condition@source; empty: none."""
    device: str = ""
    """Device that shows more; empty: none."""


def overall(findings: Iterable[Finding]) -> str:
    """Return the worst level of the findings."""
    levels = {one.level for one in findings}
    return next((level for level in RANKS if level in levels and level != NOTE), OK)


def line(finding: Finding) -> str:
    """Return a finding as a line with rich's markup."""
    from rich.markup import escape  # its import takes longer than everything else here

    style, do = STYLES[finding.level], f" [bold]->[/bold] {escape(finding.do)}" if finding.do else ""
    do += f" [dim](see {finding.see})[/dim]" if finding.see else ""
    about, text = escape(printable(finding.about)), escape(printable(finding.text))
    return f"[{style}]{finding.level:<9}[/{style}]  [bold]{about}[/bold]: {text}{do}"
