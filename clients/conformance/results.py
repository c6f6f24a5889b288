"""What became of the cases of a run."""

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of one case."""

    id: str
    outcome: Outcome
    detail: str
    """What was measured, what was expected and got, or why nothing can be said."""
