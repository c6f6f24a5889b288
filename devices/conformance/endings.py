"""Outcomes that are no good, for which a controller has to be set to them; see ``--outcome``."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What is to be seen of an outcome, by the ICD of the control model, and how to bring it about."""

    aspect: str
    """Name of the check."""
    task_status: str
    result_code: int
    fault: str
    """What makes `sdp-facade simulate controller` end a command so."""


ENDINGS: Mapping[str, Ending] = {
    "REJECTED": Ending(aspect="is-rejected", task_status="REJECTED", result_code=5, fault="reject"),
    "FAILED": Ending(aspect="fails", task_status="FAILED", result_code=3, fault="fail"),
    "TIMED_OUT": Ending(aspect="times-out", task_status="FAILED", result_code=4, fault="hang"),
}
"""By outcome; ABORTED is seen in each observation, where commands are overtaken."""
