"""What a device shows, and which commands it takes, by what was reported and what is under way.

Nothing here is held by the device: the reports and the commands are those of the log.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from facade.flows.commands.messages import issued
from facade.flows.commands.outcomes import NEW, Tracked
from facade.icd.model import CommandDefinition
from facade.reading import Value
from facade.runtime.device_state import STATE, Reported

OBS_STATE = "obsState"
FAULT = "FAULT"
STABLE = {"EMPTY": "EMPTY", "IDLE": "IDLE", "READY": "READY", "SCANNING": "READY", "ABORTED": "ABORTED"}
"""What SKA's commandedObsState is in each obsState that lasts; FAULT differs from it."""
REPORTED = ("scanTypes", "ebID")
"""Reported attributes by which arguments are judged."""


def is_transitional(obs_state: str) -> bool:
    """Return whether an obsState lasts only while a command is under way."""
    return obs_state not in (*STABLE, FAULT)


def fresh(report: Reported | None, tracked: Tracked) -> bool:
    """Return whether a report says what became of a command, or of a later one, and not what was before it."""
    if report is None:
        return False
    if report.command:
        return issued(report.command) >= tracked.issued
    # A controller that does not say which command it was about: the order on the bus tells.
    return bool(tracked.appended_us) and report.appended_us > tracked.appended_us


def shown(
    attribute: str,
    report: Reported | None,
    initial: str,
    pending: Sequence[Tracked],
    commands: Mapping[str, CommandDefinition],
) -> str:
    """Return the label that an attribute shows.

    It is what was reported last; but from the moment that a command is on the bus until its controller
    has reported, the command's transitional state, so that TM sees at once that something happens.

    Parameters
    ----------
    pending
        The device's commands without an outcome, oldest first.
    """
    label = initial if report is None else str(report.value)
    for tracked in reversed(pending):
        command = commands.get(tracked.command)
        if tracked.status == NEW and not tracked.place:
            continue  # perhaps nobody will ever hear of it
        if command is not None and command.reports == attribute:
            return label if command.transitional is None or fresh(report, tracked) else command.transitional
    return label


def unsettled(
    reports: Mapping[str, Reported | None], pending: Sequence[Tracked], commands: Mapping[str, CommandDefinition]
) -> Tracked | None:
    """Return the newest command whose effect has not been reported yet.

    TM goes by obsState, which may be reported before the acknowledgement is: a command after which
    anything but its transitional state was reported holds nobody up.
    """
    for tracked in reversed(pending):
        command = commands.get(tracked.command)
        if command is not None:  # it was let in because those before it held nobody up, or it overtook them
            report = reports.get(command.reports)
            settled = report is not None and report.value != command.transitional and fresh(report, tracked)
            return None if settled else tracked
    return None


def why_not_allowed(command: CommandDefinition, *, state: str, obs_state: str | None, under_way: Tracked | None) -> str:
    """Say why a command is not allowed; an empty text when it is.

    Parameters
    ----------
    obs_state
        None for a device that has none.
    under_way
        Command whose effect is still to come.
    """
    for name, label, allowed in ((STATE, state, command.state), (OBS_STATE, obs_state, command.obs_state)):
        if label is not None and allowed and label not in allowed:
            return (
                f"Command {command.name} not allowed when {name} is {label};"
                f" expected {name} {' or '.join(allowed)}, got {label}"
            )
    if under_way is not None and not command.overtakes:
        return (
            f"Command {command.name} not allowed while {under_way.command} ({under_way.id}) is under way;"
            " wait for its outcome, or Abort"
        )
    return ""


def contradiction(family: str, document: Mapping[str, Any], reported: Mapping[str, Value]) -> str:
    """Say what is wrong with an argument by what controllers have reported; an empty text when nothing is.

    Only what is surely wrong is refused here; the controller looks closer.

    Parameters
    ----------
    reported
        Reported attributes of the device.
    """
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
    """Return the stable obsState that the newest command is to lead to; None: no command leads to one."""
    for tracked in reversed(given):
        command = commands.get(tracked.command)
        if command is not None and command.commanded is not None:
            return command.commanded
        if command is not None and command.reports == OBS_STATE:
            return command.targets[0]
    return None
