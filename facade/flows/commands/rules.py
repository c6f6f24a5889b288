"""State, obsState and allowed commands of a device, as functions of the reports and the commands of the log."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from facade.flows.commands.messages import issued
from facade.flows.commands.outcomes import NEW, Tracked
from facade.kernel.icd.model import CommandDefinition
from facade.kernel.reading import Value
from facade.sdp.device_state import OBS_STATE, STATE, Reported

FAULT = "FAULT"
STABLE = {"EMPTY": "EMPTY", "IDLE": "IDLE", "READY": "READY", "SCANNING": "READY", "ABORTED": "ABORTED"}
"""SKA's commandedObsState in each stable obsState. FAULT has no entry: the last command decides."""
MOST_PENDING = 32
"""Most commands of one device without an outcome, and most that wait for a second person."""
REPORTED = ("scanTypes", "ebID")
"""Reported attributes that arguments are compared with."""


def is_transitional(obs_state: str) -> bool:
    """Return whether an obsState lasts only while a command is under way."""
    return obs_state not in (*STABLE, FAULT)


def fresh(report: Reported | None, tracked: Tracked) -> bool:
    """Return whether a report came after a command."""
    if report is None:
        return False
    if report.command:
        # The id of an approved command is older than its issue.
        return report.command == tracked.id or issued(report.command) >= tracked.message.issued
    # The report names no command: their order on the bus decides.
    return bool(tracked.appended_us) and report.appended_us > tracked.appended_us


def shown(
    attribute: str,
    report: Reported | None,
    initial: str,
    pending: Sequence[Tracked],
    commands: Mapping[str, CommandDefinition],
) -> str:
    """Return the label that an attribute shows.

    It is the last report. From the time that a command is on the bus until its controller has reported, it is the
    command's transitional state.

    Parameters
    ----------
    pending
        The device's commands without an outcome, oldest first.
    """
    label = initial if report is None else str(report.value)
    for tracked in reversed(pending):
        command = commands.get(tracked.command)
        if tracked.state == NEW:
            continue  # it may never arrive
        if command is not None and command.reports == attribute:
            return label if command.transitional is None or fresh(report, tracked) else command.transitional
    return label


def unsettled(
    reports: Mapping[str, Reported | None], pending: Sequence[Tracked], commands: Mapping[str, CommandDefinition]
) -> Tracked | None:
    """Return the newest command whose effect has not been reported yet.

    TM uses obsState, which may be reported before the acknowledgement. So a command is settled once another state than
    its transitional one was reported.
    """
    for tracked in reversed(pending):
        command = commands.get(tracked.command)
        if command is not None:  # earlier ones were settled when it was admitted, or it overtook them
            report = reports.get(command.reports)
            settled = report is not None and report.value != command.transitional and fresh(report, tracked)
            return None if settled else tracked
    return None


def why_not_allowed(
    command: CommandDefinition,
    *,
    state: str,
    obs_state: str | None,
    under_way: Tracked | None = None,
    others: Iterable[CommandDefinition] = (),
) -> str:
    """Return the reason why a command is not allowed; empty: it is allowed.

    Parameters
    ----------
    state
        UNKNOWN forbids nothing: the controller, which knows its state, decides.
    obs_state
        None for a device without one, or if it is not known.
    under_way
        Command without a reported effect.
    others
        Commands of the same device. The text names those that end the command under way, and leave the device on.
    """
    for name, label, allowed in ((STATE, state, command.state), (OBS_STATE, obs_state, command.obs_state)):
        if label not in (None, "UNKNOWN") and allowed and label not in allowed:
            return (
                f"Command {command.name} not allowed when {name} is {label};"
                f" expected {name} {' or '.join(allowed)}, got {label}"
            )
    if under_way is not None and not command.overtakes:
        ways_out = [
            one.name
            for one in others
            if one.overtakes and one.reports == OBS_STATE and not why_not_allowed(one, state=state, obs_state=obs_state)
        ]
        return (
            f"Command {command.name} not allowed while {under_way.command} ({under_way.id}) is under way;"
            f" {', or '.join(('wait for its outcome', *ways_out))}"
        )
    return ""


def contradiction(family: str, document: Mapping[str, Any], reported: Mapping[str, Value]) -> str:
    """Return the contradiction of an argument to the reported attributes of a device; empty: there is none."""
    if family == "configure":
        known = reported.get("scanTypes") or ()
        added = [entry.get("scan_type_id") for entry in document.get("new_scan_types", ())]
        wanted = document["scan_type"]
        if isinstance(known, tuple) and known and wanted not in (*known, *added):
            return f"$.scan_type: expected one of {', '.join(map(str, (*known, *added)))}, got {wanted!r}"
    if family == "assignres":
        block = document.get("execution_block") or {}
        if block and block.get("eb_id") == reported.get("ebID"):
            return f"$.execution_block.eb_id: expected a new id, got {block['eb_id']!r}, which is the active one's"
    return ""


def commanded(given: Sequence[Tracked], commands: Mapping[str, CommandDefinition]) -> str | None:
    """Return the stable obsState to which the newest command leads; None: no command leads to one."""
    for tracked in reversed(given):
        command = commands.get(tracked.command)
        if command is not None and command.commanded is not None:
            return command.commanded
        if command is not None and command.reports == OBS_STATE:
            return command.targets[0]
    return None
