"""Views of the commands of a device, and of a subarray itself."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from facade.flows.commands.flow import Components
from facade.flows.commands.lease import Lease
from facade.flows.commands.outcomes import (
    ACCEPTED,
    IN_PROGRESS,
    RESULT_CODE,
    TASK_STATUS,
    TIMED_OUT,
    WAITING,
    Tracked,
    result,
)
from facade.flows.commands.rules import FAULT, STABLE, commanded, is_transitional
from facade.flows.commands.shown import Shown
from facade.flows.commands.tracker import Tracker
from facade.kernel.bus.port import BusHealth
from facade.kernel.clock import SECOND, Clock, Time, utc_seconds, utc_text
from facade.kernel.icd.model import DeviceClass
from facade.kernel.printable import printable
from facade.kernel.reading import Reading, Value
from facade.kernel.runtime.flow import AFTER_CHANGES, DeviceView, Gate
from facade.kernel.runtime.health_issues import DEGRADED, FAILED, OK, UNKNOWN
from facade.kernel.runtime.heartbeats import SILENT, Heartbeats
from facade.sdp.admin_mode import ATTRIBUTE as ADMIN_MODE
from facade.sdp.admin_mode import MODE_LOST
from facade.sdp.device_state import OBS_STATE, STATE, DeviceStates

VERSIONS = (1, 2)
"""Lowest and highest version of the protocol that devices speak."""
_KEPT = SECOND
"""Time for which a change stays in later events, as an event may replace one that has not left."""
_NUMBERS = {"STAGING": 0, "QUEUED": 1, "IN_PROGRESS": 2, "ABORTED": 3, "COMPLETED": 5, "REJECTED": 6, "FAILED": 7}
"""TaskStatus of the SKA control model."""


class LrcEvents:
    """Changes of the commands of one device, by version 2 of ska-tango-base's protocol for long-running commands.

    A client, `invoke_lrc`, subscribes to ``_lrcEvent``, gives its command, and looks for its id in each event. The
    attribute has pairs of an id and a JSON object with the changes of ``status`` (TaskStatus), ``progress`` [%] and
    ``result``.
    """

    def __init__(self) -> None:
        self._told: dict[str, dict[str, Any]] = {}
        self._recent: dict[str, tuple[Time, dict[str, Any]]] = {}
        """Time of the last change of each command, and the change."""
        self._value: tuple[str, ...] = ()

    def value(self, commands: Sequence[Tracked], now: Time) -> tuple[str, ...]:
        """Return id, JSON object, id, JSON object ... of the last changes; without a new one the same as before."""
        states = {one.id: _state(one) for one in commands}
        changes = {id: changed for id, state in states.items() if (changed := self._changed(id, state))}
        self._told = states
        if not changes:
            return self._value
        self._recent = {id: (at, change) for id, (at, change) in self._recent.items() if now - at <= _KEPT}
        for id, change in changes.items():
            self._recent[id] = (now, {**self._recent.get(id, (now, {}))[1], **change})
        self._value = tuple(text for id, (_, change) in self._recent.items() for text in (id, json.dumps(change)))
        return self._value

    def _changed(self, id: str, state: Mapping[str, Any]) -> dict[str, Any]:
        before = self._told.get(id, {})
        return {name: value for name, value in state.items() if before.get(name) != value}


def _state(one: Tracked) -> dict[str, Any]:
    state: dict[str, Any] = {"status": _NUMBERS[TASK_STATUS[one.status]]}
    if one.progress is not None:
        state["progress"] = one.progress
    if one.ended:
        state["result"] = result(one)
    return state


_BEHIND = 2 * SECOND
"""Longest time by which a final state follows the outcome, as the two are on different partitions."""
_FINISHED = 32
"""Finished commands shown in attributes; GetCommandHistory has the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSources:
    """Sources of the views of the command path."""

    shown: Shown
    components: Components
    heartbeats: Heartbeats
    lease: Lease
    health: BusHealth
    clock: Clock


class CommandView(DeviceView):
    """The long-running-command attributes of one device, in the form of ska-tango-base."""

    def __init__(
        self,
        device: str,
        device_class: DeviceClass,
        tracker: Tracker,
        states: DeviceStates,
        known: Callable[[], bool],
    ) -> None:
        super().__init__(device, Gate(AFTER_CHANGES))  # only after an event of a command
        self._states = states
        self._known = known
        self._names = {attribute.name for attribute in device_class.attributes}
        self._commands = {command.name: command for command in device_class.commands}
        self._initial = next((a.initial or "" for a in device_class.attributes if a.name == OBS_STATE), "")
        self._tracker = tracker
        self._texts: dict[tuple[str, str, Time], str] = {}
        """Texts of finished commands, by id, state and end; the log may overrule the state of a finished command."""
        self._events = LrcEvents()

    def _version(self) -> object:
        return self._tracker.version(self._device), self._states.version(self._device), self._known()

    def _readings(self, now: Time) -> Iterator[tuple[str, Reading]]:
        # In a part of the log the outcomes of old commands are missing.
        values = self._values(now) if self._known() else {}
        return self._dated({name: value for name, value in values.items() if name in self._names}, now)

    def _values(self, now: Time) -> dict[str, Value]:
        pending = self._tracker.pending(self._device)
        finished = self._tracker.finished(self._device, _FINISHED)
        executing = [one for one in pending if one.status in (ACCEPTED, IN_PROGRESS)]
        queued = [one for one in pending if one not in executing]
        ordered = sorted([*finished, *pending], key=lambda one: one.message.issued)
        newest = ordered[-1] if ordered else None
        keys = {(one.id, one.state, one.ended): one for one in finished}
        self._texts = {key: self._texts.get(key) or json.dumps(_finished(one)) for key, one in keys.items()}
        return {
            "lrcProtocolVersions": VERSIONS,
            "_lrcEvent": self._events.value(finished + pending, now),
            # The outcome first: callers wait for its event, and events leave in this order.
            "longRunningCommandResult": _flat(finished[-1:], lambda one: json.dumps(result(one))),
            "longRunningCommandsInQueue": tuple(one.command for one in finished + pending),
            "longRunningCommandIDsInQueue": tuple(one.id for one in finished + pending),
            "longRunningCommandStatus": _flat(finished + pending, lambda one: TASK_STATUS[one.status]),
            "longRunningCommandInProgress": tuple(one.command for one in executing),
            "longRunningCommandProgress": _flat(
                [one for one in executing if one.progress is not None], lambda one: str(one.progress)
            ),
            "lrcQueue": tuple(json.dumps(_queued(one)) for one in queued),
            "lrcExecuting": tuple(
                json.dumps({**_queued(one), "started_time": utc_text(one.began), "progress": one.progress})
                for one in executing
            ),
            "lrcFinished": tuple(self._texts.values()),
            "lastCommand": "" if newest is None else f"{newest.id} {newest.command} {newest.status}",
            "transactionId": "" if newest is None else newest.message.transaction_id,
            **({"commandedObsState": label} if (label := self._commanded(ordered)) else {}),
            "commandsPending": len(pending),
            "commandsFinished": self._tracker.finished_total(self._device),
            "acksLate": self._tracker.late[self._device],
            "acksUnknown": self._tracker.unknown[self._device],
        }

    def _commanded(self, given: Sequence[Tracked]) -> str:
        reported = self._states.label(self._device, OBS_STATE)
        reached = None if self._tracker.under_way(self._device) else STABLE.get(reported)
        given = [one for one in given if one.state not in WAITING]
        initial = "" if self._states.are_lost else self._initial
        return reached or commanded(given, self._commands) or initial


class SubarrayView(DeviceView):
    """obsState, State and health of one subarray."""

    def __init__(self, device: str, device_class: DeviceClass, sources: CommandSources, version: str) -> None:
        super().__init__(device)
        self._sources, self._shown, self._release = sources, sources.shown, version

    def _version(self) -> object:
        shown = self._shown
        return shown.tracker.version(self._device), shown.states.version(self._device), shown.known()

    def stuck(self, now: Time) -> str:
        """Return a text if a transitional state has outlived its command; otherwise an empty one."""
        obs_state, tracker = self._shown.look(self._device).obs_state or "", self._shown.tracker
        if not (self._shown.known() and obs_state and is_transitional(obs_state)) or tracker.under_way(self._device):
            return ""
        last = next(iter(tracker.finished(self._device, 1)), None)
        if last is not None and now - last.ended <= _BEHIND:
            return ""
        ended = "" if last is None else f"; the last one, {last.command} ({last.id}), is {last.status}"
        return f"obsState is {obs_state}, but no command is under way{ended}"

    def _readings(self, now: Time) -> Iterator[tuple[str, Reading]]:
        state, shown, _ = self._shown.look(self._device)
        known = self._shown.known()  # a part of the log shows old commands and states
        obs_state = (known and shown) or ""
        health, reasons = self._health(now, shown or "")
        mode = self._shown.states.label(self._device, ADMIN_MODE) if known else ""
        line = (
            f"The device is in {state} state; obsState is {obs_state or 'not known'}; adminMode is"
            f" {mode or 'not known'}; health is {health}."
        )
        values: dict[str, Value] = {
            **({OBS_STATE: obs_state} if obs_state else {}),
            "healthState": health,
            "healthInfo": reasons,
            "versionId": self._release,
            STATE: state,
            "Status": "\n".join(map(printable, (line, *reasons))),
        }
        return self._dated(values, now)

    def _health(self, now: Time, obs_state: str) -> tuple[str, tuple[str, ...]]:
        sources = self._sources
        if not sources.health.connected:
            return UNKNOWN, (f"no Kafka broker reachable; last error: {sources.health.last_error or 'none yet'}",)
        failed: list[str] = []
        degraded: list[str] = []
        if why := sources.lease.trouble(sources.clock.monotonic()):
            failed.append(f"commands are refused: {why}")
        if self._shown.known() and self._shown.states.has_lost(self._device, ADMIN_MODE):
            failed.append(f"commands are refused: {MODE_LOST}")
        at = sources.heartbeats.judged_at
        silent = silences(sources.components, at, self._device).values()
        alive = sources.components.alive_for(self._device, at, SILENT)
        (degraded if alive else failed).extend(silent)
        failed.extend(rivalries(sources.components, sources.heartbeats.newest_at, self._device))
        if obs_state == FAULT:
            failed.append("obsState is FAULT; see errorMessages")
        if why := self.stuck(now):
            failed.append(why)
        last = self._shown.tracker.finished(self._device, 1)
        if last and last[0].status == TIMED_OUT:
            degraded.append(f"the last command, {last[0].command} ({last[0].id}), has timed out")
        if failed:
            return FAILED, (*failed, *degraded)
        if not alive:
            return UNKNOWN, ("no controller of this subarray was heard of", *degraded)
        return (DEGRADED, tuple(degraded)) if degraded else (OK, ())


def silences(components: Components, now: Time, device: str = "") -> dict[str, str]:
    """Return the silent controllers of a device, or of all, each with a text."""
    return {
        name: f"controller {name} has been silent since {utc_seconds(heard)}"
        for name, heard in sorted(components.silent(now, SILENT).items())
        if not device or device in components.newest[name][0].devices
    }


def rivalries(components: Components, now: Time, device: str = "") -> list[str]:
    """Name the controllers that each execute every command of a device, or of any."""
    found: dict[tuple[str, ...], list[str]] = {}
    for one in [device] if device else components.devices():
        if names := components.duplicate_controllers(one, now, SILENT):
            found.setdefault(tuple(names), []).append(one)
    return [
        f"controllers {' and '.join(names)} each execute every command of {', '.join(devices)}: stop all but one"
        for names, devices in found.items()
    ]


def as_dict(one: Tracked) -> dict[str, Any]:
    """Return all known fields of a command, for people and programs."""
    return {
        "id": one.id,
        "device": one.device,
        "name": one.command,
        "transaction_id": one.message.transaction_id,
        "client": one.message.client,
        "operator": one.message.operator,
        "approver": one.message.approver,
        "approver_client": one.message.approver_client,
        "status": one.status,
        "task_status": TASK_STATUS[one.status],
        "submitted_time": utc_text(one.message.issued),
        "not_after": utc_text(one.message.not_after),
        "deadline": utc_text(one.deadline),
        "started_time": utc_text(one.began) if one.began else None,
        "finished_time": utc_text(one.ended) if one.ended else None,
        "progress": one.progress,
        "text": one.text,
        "result": one.result,
        "result_code": RESULT_CODE.get(one.status),
        "record": one.place or None,
        "acks": [
            {"status": ack.status, "time": utc_text(ack.time), "origin": ack.origin, "text": ack.text}
            for ack in one.acks
        ],
    }


def _queued(one: Tracked) -> dict[str, Any]:
    return {"uid": one.id, "name": one.command, "submitted_time": utc_text(one.message.issued)}


def _finished(one: Tracked) -> dict[str, Any]:
    return {
        **_queued(one),
        "started_time": utc_text(one.began) if one.began else None,
        "finished_time": utc_text(one.ended),
        "status": TASK_STATUS[one.status],
        "result": result(one),
    }


def _flat(tracked: Sequence[Tracked], value: Callable[[Tracked], str]) -> tuple[str, ...]:
    return tuple(text for one in tracked for text in (one.id, value(one)))
