"""Outcomes that are no good, for which a controller has to be set to them; see ``--outcome``."""

from collections.abc import Mapping
from dataclasses import dataclass

from clients.conformance.options import Options
from clients.conformance.seen import STEPS
from facade.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What is to be seen of an outcome, and how to bring it about."""

    aspect: str
    """Name of the check."""
    task_status: str
    """Of SKA's control model."""
    result_code: int
    """Of ska-tango-base."""
    fault: str
    """What makes `sdp-facade simulate controller` end a command so."""


ENDINGS: Mapping[str, Ending] = {
    "REJECTED": Ending(aspect="is-rejected", task_status="REJECTED", result_code=5, fault="reject"),
    "FAILED": Ending(aspect="fails", task_status="FAILED", result_code=3, fault="fail"),
    "TIMED_OUT": Ending(aspect="times-out", task_status="FAILED", result_code=4, fault="hang"),
}
"""By outcome; ABORTED is seen in each observation, where commands are overtaken."""


def require_outcome(options: Options) -> None:
    """Demand that an outcome that is asked for can be seen.

    Raises
    ------
    ConfigError
        The walk does not give this command, or there is no such outcome, or nothing is commanded.
    """
    if options.outcome is None:
        return
    commands = [step for step in STEPS if isinstance(step, str)]
    command, outcome = options.outcome
    if command not in commands or outcome not in ENDINGS:
        what = f"COMMAND one of {', '.join(commands)}, and OUTCOME one of {', '.join(ENDINGS)}"
        raise ConfigError(f"--outcome: expected COMMAND=OUTCOME, {what}; got COMMAND {command!r}, OUTCOME {outcome!r}")
    if not options.active:
        raise ConfigError("--outcome: expected --active as well, as a command has to be given")
