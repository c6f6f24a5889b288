"""The pending and recent commands of some devices, and their outcomes, derived from the log alone.

The tracker folds the ``commands`` and ``command-acks`` topics. Acknowledgements of one device are on one partition, so
every reader finds the same first final outcome, also after a restart. The tracker of a device server folds both topics,
the tracker of a controller only acknowledgements.
"""

import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from facade.flows.commands.messages import AckMessage, CommandMessage
from facade.flows.commands.outcomes import (
    BY_FACADE,
    CLOSED,
    COMPLETED,
    ENDED,
    FINAL,
    HELD,
    IN_PROGRESS,
    NEW,
    NOTED,
    OFF_THE_LOG,
    REJECTED,
    SENT,
    TRANSITIONS,
    UNDELIVERED,
    WAITING,
    WITHDRAWN,
    Tracked,
    command_of,
    kept,
)
from facade.kernel.bus.port import Record
from facade.kernel.clock import NEVER, Duration, Time, as_duration
from facade.kernel.outcome import USED, Outcome, RecordRejected, Suppressed, Unused

_ORPHAN = 10.0
"""Longest wait of an acknowledgement for its command, which may be read after it [s]."""
_ORPHANS = 1000
_FINISHED = 2000
_AGAIN = 5.0
"""Time after which an outcome of the facade is written again, if it has not come back [s]."""


@dataclass(slots=True)
class _Device:
    """The commands of one device."""

    pending: dict[str, Tracked] = field(default_factory=dict)
    finished: deque[Tracked] = field(default_factory=deque)
    version: int = 0
    finished_total: int = 0
    newest: Time = NEVER
    """Issue time of the newest command."""


class Tracker:
    """The commands of some devices; may be used from several threads.

    Parameters
    ----------
    keep
        Finished commands remembered of each device.
    acks
        Acknowledgements remembered of each command.
    with_commands
        Whether commands are folded as well, so that an acknowledgement counts only after its command was read.
    """

    def __init__(
        self, devices: Iterable[str], *, keep: int = _FINISHED, acks: int = 50, with_commands: bool = True
    ) -> None:
        self._keep = keep
        self._most_acks = acks
        self._with_commands = with_commands
        self._devices = {device: _Device() for device in devices}
        self._by_id: dict[str, Tracked] = {}
        """By `_key`."""
        self._by_transaction: dict[tuple[str, str, str], Tracked] = {}
        self._orphans: dict[tuple[str, str], list[tuple[float, AckMessage]]] = {}
        """Acknowledgements of commands that were not read yet, by device and id: a signature proves the device only."""
        self._lock = threading.RLock()
        self.live = False
        """Whether all records from before the start have been read."""
        self._live_since = math.inf
        """When it became live [monotonic s]."""
        self.late = dict.fromkeys(self._devices, 0)
        """Acknowledgements that came after the outcome, or out of order, by device."""
        self.outcomes = Counter[tuple[str, str]]()
        """Commands that have ended while it was live, by device and outcome."""
        self.unknown = dict.fromkeys(self._devices, 0)
        """Acknowledgements of unknown commands, by device."""

    def begin(self, command: CommandMessage, state: str = NEW) -> None:
        """Remember a command before it is written; `state` HELD: it waits for a second person."""
        with self._lock:
            self._add(command, state)

    def change(
        self,
        id: str,
        state: str,
        message: CommandMessage | None = None,
        *,
        appended_us: Time = NEVER,
        ended: Time = NEVER,
        text: str = "",
    ) -> bool:
        """Change the state of a command if the table allows it; return whether it did.

        Parameters
        ----------
        message
            The command with the times that hold in the new state: an approval has times of its own. None: as before.
        """
        with self._lock:
            tracked = self._by_id[id]
            if state not in TRANSITIONS[tracked.state]:
                return False
            if message is not None:
                tracked.message, tracked.deadline = kept(message, state), message.deadline
                tracked.appended_us = appended_us
                device = self._devices[tracked.device]
                device.newest = max(device.newest, message.issued)
            self._move(tracked, state)
            tracked.ended, tracked.text = ended, text or tracked.text  # afterwards: a view may look at any time
            return True

    def fold_command(self, command: CommandMessage, record: Record) -> Outcome:
        """Process a command from the log; see `facade.kernel.runtime.flow.Flow.fold`."""
        with self._lock:
            if (why := self._refused(command)) is not None:
                return why
            tracked = self._by_id.get(command.id) or self._add(command, NEW)
            if tracked.place:
                return Suppressed("repeated")
            # The log is right. If UNDELIVERED is on the log, it holds: no controller begins the command so late.
            self.change(command.id, SENT, command)
            tracked.place = f"{record.topic}/{record.partition}@{record.offset}"
            tracked.appended_us = record.timestamp_us
            for _, ack in self._orphans.pop((command.device, command.id), ()):
                self._apply(tracked, ack)
            return USED

    def fold_held(self, command: CommandMessage, record: Record) -> Outcome:
        """Process a command that waits for a second person; see `facade.kernel.runtime.flow.Flow.fold`."""
        with self._lock:
            if (why := self._refused(command)) is not None:
                return why
            finished = self._devices[command.device].finished
            # A command that was approved long ago is not remembered.
            is_old = len(finished) >= self._keep and command.issued <= finished[0].ended
            known = self._by_id.get(command.id)
            if known is not None and known.state in WAITING:
                known.appended_us = known.appended_us or record.timestamp_us
            if known is not None or is_old:
                return Suppressed("repeated")
            self._add(command, HELD).appended_us = record.timestamp_us
            return USED

    def _refused(self, command: CommandMessage) -> Unused | None:
        """Return the reason why the record of a command is refused: its id belongs to another one."""
        if command.device not in self._devices:
            return Suppressed("other-device")
        known = self._by_id.get(command.id)
        for name in ("device", "command", "transaction_id"):
            expected, got = known and getattr(known.message, name), getattr(command, name)
            if expected and got != expected:
                return RecordRejected("id", f"$.{name}", f"{command.id}: expected {expected}, got {got}")
        return None

    def fold_unapproved(self, ack: AckMessage) -> Outcome:
        """Process the outcome of a command that waited for a second person and was not approved."""
        with self._lock:
            tracked = self._by_id.get(ack.id)
            if tracked is None or tracked.device != ack.device:
                return Suppressed("other-device")
            self._apply(tracked, ack)
            return USED

    def fold_ack(self, ack: AckMessage, monotonic: float) -> Outcome:
        """Process an acknowledgement from the log; see `facade.kernel.runtime.flow.Flow.fold`."""
        with self._lock:
            if (why := self.objection(ack)) is not None:
                return why
            tracked = self._by_id.get(self._key(ack.device, ack.id))
            if not self._with_commands:
                self._apply(tracked or self._add(command_of(ack.id, ack.device, ack.command), NEW), ack)
            elif tracked is None or tracked.state in OFF_THE_LOG:
                self._keep_orphan(ack, monotonic)
            else:
                self._apply(tracked, ack)
            return USED

    def note(self, outcome: AckMessage) -> None:
        """Note an outcome that the bus has, and that was not read yet; an earlier one of the log overrules it."""
        with self._lock:
            tracked = self._by_id.get(self._key(outcome.device, outcome.id)) or self._add(
                command_of(outcome.id, outcome.device, outcome.command), NEW
            )
            if NOTED in TRANSITIONS[tracked.state]:
                tracked.newest = outcome
                self._move(tracked, NOTED)

    def newest(self, device: str, id: str) -> AckMessage | None:
        """Return the outcome of a device's command, or else its newest acknowledgement; None: there is none."""
        tracked = self._by_id.get(self._key(device, id))
        return None if tracked is None else tracked.newest

    def left_open(self, origin: str) -> list[AckMessage]:
        """Return the newest acknowledgement of each command that an origin began and did not end."""
        newest = [one.newest for one in self._all() if not one.final]
        return [ack for ack in newest if ack is not None and ack.origin == origin]

    def given_up(self, origin: str) -> list[AckMessage]:
        """Return the newest acknowledgement of each command that an origin began, and that timed out before its end."""
        begun = [one.begun for one in self._all() if one.state in BY_FACADE]
        return [ack for ack in begun if ack is not None and ack.origin == origin]

    def objection(self, ack: AckMessage) -> Unused | None:
        """Return the reason why an acknowledgement is refused, if there is one."""
        if ack.device not in self._devices:
            return Suppressed("other-device")
        tracked = self._by_id.get(self._key(ack.device, ack.id))
        if ack.withdrawer:
            what = "expected none: device servers write withdrawals to commands-held"
            return RecordRejected("withdrawer", "$.withdrawer", what)
        if tracked is not None and tracked.device != ack.device:
            return RecordRejected("device", "$.device", f"{ack.id}: expected {tracked.device}, got {ack.device}")
        return None

    def _keep_orphan(self, ack: AckMessage, monotonic: float) -> None:
        waiting = self._orphans.setdefault((ack.device, ack.id), [])
        if len(waiting) < self._most_acks or (ack.status in FINAL and not any(a.status in FINAL for _, a in waiting)):
            waiting.append((monotonic, ack))
        # At a start the acknowledgements of thousands of commands may be read before the commands.
        if self.live and len(self._orphans) > _ORPHANS:
            self._drop_orphans([next(iter(self._orphans))])

    def due(self, now_us: Time, monotonic: float, origin: str, has_read: Callable[[Time], bool]) -> list[AckMessage]:
        """Return the outcomes that the facade has to write; `has_read`: see `Tracked.overdue`.

        They count when they come back: the first outcome on the log holds.
        """
        with self._lock:
            if not self.live:
                self.live, self._live_since = True, monotonic
            # The record of an UNDELIVERED command may come at any time.
            old = [
                key
                for key, acks in self._orphans.items()
                if monotonic - acks[0][0] > _ORPHAN and acks[0][1].status != UNDELIVERED
            ]
            self._drop_orphans(old)
            made = []
            for device in self._devices.values():
                for tracked in device.pending.values():
                    ack = tracked.overdue(now_us, origin, has_read)
                    if ack is not None and monotonic - tracked.closed_at > _AGAIN:
                        tracked.closed_at = monotonic
                        if tracked.state == HELD:
                            self._move(tracked, CLOSED)  # also if the clock is set back
                        made.append(ack)
            return made

    def pending(self, device: str) -> list[Tracked]:
        """Return the commands of a device without an outcome, oldest first."""
        with self._lock:
            return list(self._devices[device].pending.values())

    def under_way(self, device: str) -> list[Tracked]:
        """Return the pending commands of a device that may take effect, oldest first.

        One that waits for a second person does not.
        """
        return [one for one in self.pending(device) if one.state not in WAITING]

    def finished(self, device: str, most: int) -> list[Tracked]:
        """Return the newest finished commands of a device, oldest first."""
        with self._lock:
            finished = self._devices[device].finished
            return [finished[at] for at in range(max(0, len(finished) - most), len(finished))]

    def finished_total(self, device: str) -> int:
        """Return the number of finished commands of a device, over the whole log."""
        return self._devices[device].finished_total

    def version(self, device: str) -> int:
        """Return a number that changes with each event of a device's commands."""
        return self._devices[device].version

    def next_issue(self, device: str, now_us: Time) -> Time:
        """Return an issue time after those of all earlier commands, also when the clock was set back."""
        with self._lock:
            return max(now_us, self._devices[device].newest + Duration(1))

    def find(self, id: str) -> Tracked | None:
        """Return a command by its id."""
        return self._by_id.get(id)

    def of_transaction(self, device: str, command: str, transaction_id: str) -> Tracked | None:
        """Return a device's command with a transaction id."""
        return self._by_transaction.get((device, command, transaction_id))

    def _key(self, device: str, id: str) -> str:
        """Return the key of a command.

        A controller may acknowledge commands for its own devices only, but nothing stops it from writing the id of
        another device's command. A device server reads the commands, so it refuses an acknowledgement that names the
        wrong device. A controller of several devices reads acknowledgements only, so the device is part of its key.
        """
        return f"{device} {id}" if not self._with_commands and len(self._devices) > 1 else id

    def _all(self) -> list[Tracked]:
        with self._lock:
            return list(self._by_id.values())

    def _add(self, command: CommandMessage, state: str) -> Tracked:
        """Remember a command that is not known, in one of the states in which a command begins."""
        assert command.id not in self._by_id, f"{command.id} is known: its outcome would be lost"
        tracked = Tracked.of(command, state)
        self._by_id[self._key(command.device, command.id)] = tracked
        self._by_transaction[command.device, command.command, command.transaction_id] = tracked
        device = self._devices[command.device]
        device.pending[tracked.id] = tracked
        device.newest = max(device.newest, command.issued)
        device.version += 1
        return tracked

    def _apply(self, tracked: Tracked, ack: AckMessage) -> None:
        by_facade = ack.status in BY_FACADE or bool(ack.withdrawer)
        if tracked.state == WITHDRAWN and not by_facade:
            self._move(tracked, SENT)  # a controller has read it: then it was approved, and not withdrawn
        is_again = ack in tracked.acks
        if len(tracked.acks) < self._most_acks:
            tracked.acks.append(ack)
        self._devices[tracked.device].version += 1
        if ack.status in FINAL and not by_facade:
            tracked.begun = None
        state = WITHDRAWN if ack.withdrawer else ack.status
        if state not in TRANSITIONS[tracked.state] or is_again:
            self.late[tracked.device] += 1
            return
        tracked.text = ack.text or tracked.text
        if ack.progress is not None:
            tracked.progress = ack.progress
        if ack.status == COMPLETED and tracked.progress is not None:
            tracked.progress = 100  # regardless of its controller's last report
        if ack.status != REJECTED and not by_facade:
            tracked.began = tracked.began or ack.time
        if ack.status == IN_PROGRESS and ack.remaining is not None:
            extended = ack.time + as_duration(ack.remaining)
            tracked.deadline = min(max(tracked.deadline, extended), tracked.message.ceiling)
        tracked.newest = ack
        if ack.status in FINAL:
            tracked.ended, tracked.result = ack.time, ack.result
        else:
            tracked.begun = ack
        self._move(tracked, state)

    def _move(self, tracked: Tracked, state: str) -> None:
        """Change the state of a command: nothing else does."""
        before = tracked.state
        assert state in TRANSITIONS[before], f"{tracked.id}: {before} does not lead to {state}"
        device = self._devices[tracked.device]
        tracked.state = state
        device.version += 1
        if before in ENDED:
            device.finished.remove(tracked)
            device.finished_total -= 1
            tracked.ended, tracked.text, tracked.newest = NEVER, "", None
            tracked.acks.clear()
        if state in ENDED:
            device.pending.pop(tracked.id, None)
            device.finished.append(tracked)
            device.finished_total += 1
            self.outcomes[tracked.device, tracked.status] += self.live
            if len(device.finished) > self._keep:
                self._forget(device.finished.popleft())
        elif before in OFF_THE_LOG and state not in WAITING:
            device.pending.pop(tracked.id, None)
            device.pending[tracked.id] = tracked  # as the newest one
        is_open, total, there = tracked.id in device.pending, device.finished_total, len(device.finished)
        assert is_open == (state not in ENDED), f"{tracked.id} is {state}, and {'' if is_open else 'not '}pending"
        assert total >= there, f"{tracked.device}: {total} commands have finished, {there} are kept"

    def _forget(self, tracked: Tracked) -> None:
        del self._by_id[self._key(tracked.device, tracked.id)]
        key = (tracked.device, tracked.command, tracked.message.transaction_id)
        if self._by_transaction.get(key) is tracked:
            del self._by_transaction[key]

    def _drop_orphans(self, keys: Iterable[tuple[str, str]]) -> None:
        for key in keys:
            acks = self._orphans.pop(key)
            # The log may keep acknowledgements longer than commands: those from before the start prove no mistake.
            self.unknown[acks[0][1].device] += sum(at > self._live_since for at, _ in acks)
            self._devices[acks[0][1].device].version += 1
