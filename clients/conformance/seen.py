"""Which commands one subarray is given, and what was seen of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from clients.conformance.subarray import Answer
from facade.icd.model import Command

STEPS: tuple[str | tuple[str, str], ...] = (
    "On",
    "AssignResources",
    "ReleaseResources",
    "Configure",
    "Scan",
    "EndScan",
    "End",
    "ReleaseAllResources",
    ("AssignResources", "Abort"),
    "ObsReset",
    "Abort",
    "Restart",
    ("AssignResources", "Off"),
)
"""Commands from OFF to OFF; of a pair, the second is given at once, to overtake the first."""
FINAL = ("COMPLETED", "FAILED", "ABORTED", "REJECTED", "TIMED_OUT", "UNDELIVERED")


ADDRESSES = "receiveAddresses"
REPORTED = {"AssignResources": (ADDRESSES, "resources", "ebID"), "Configure": ("scanType",), "Scan": ("scanID",)}
"""What a controller has to report of a command besides the state."""
NOT_REPORTED = ("", "null", "{}", "[]", "0")
"""What these attributes show before anything is reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedCall:
    """A call that had to fail."""

    command: str
    aspect: str
    words: tuple[str, ...]
    answer: Answer
    changes: Mapping[str, str]
    """What was different after it."""


@dataclass(slots=True, kw_only=True)
class Given:
    """A call that had to be taken."""

    command: Command
    answer: Answer
    id: str = ""
    overtaken: bool = False
    """Whether another command was given while this one was under way."""
    before: str = ""
    """Value of the attribute that shows the effect, before the call."""
    path: list[str] = field(default_factory=list)
    """Its values since."""
    reported: dict[str, str] = field(default_factory=dict)
    """Attributes that its controller has to report, as they were when the effect was there."""
    commanded: str = ""
    """commandedObsState when the effect was there."""
    known: dict[str, Any] = field(default_factory=dict)
    """What GetCommand said when the outcome was there."""
    at_end: dict[str, Any] = field(default_factory=dict)
    """What it said at the end of the walk."""
    obs_state: str = ""
    """obsState after an outcome that is no good."""
    result: tuple[str, ...] = ()
    """longRunningCommandResult after an outcome that is no good."""
    finished: dict[str, Any] = field(default_factory=dict)
    """What lrcFinished said of it then."""


@dataclass(slots=True, kw_only=True)
class Walk:
    """What was seen."""

    device: str
    began: float
    """[Unix s]"""
    ended: float = 0.0
    refused: list[RefusedCall] = field(default_factory=list)
    given: list[Given] = field(default_factory=list)
    broken_off: str = ""
    """Why the walk ended early."""
    left: str = ""
    """What was not put back."""
