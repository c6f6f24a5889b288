"""What a controller reads: the commands for its devices, how far it is with them, and what was said of them before."""

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from facade.bus.dead_letters import dead_letter
from facade.bus.port import GroupMember, Reader, Record, Writer
from facade.clock import Clock
from facade.codec.decode import UNREADABLE
from facade.controller.call import Call
from facade.controller.life import State
from facade.controller.own_states import OwnStates
from facade.controller.parents import Parents
from facade.errors import BusError
from facade.flows.commands.messages import ACKS, AckMessage, CommandMessage, decode_ack, decode_command, reported
from facade.flows.commands.tracker import Tracker
from facade.outcome import Rejected, Suppressed, Unused
from facade.runtime.accounts import StreamAccount
from facade.runtime.device_state import TOPIC as STATES
from facade.runtime.device_state import DeviceStates, StateMessage, decode_state

_log = logging.getLogger(__name__)

_READ = 10_000
_LATEST = 1.0
"""While commands come, longest time until what is finished is committed [s]."""


OpenReader = Callable[[Mapping[str, Sequence[int] | None], Mapping[str, Mapping[int, int]]], Reader]
"""Reads topics from given offsets on, or else from their beginning."""


class Place(NamedTuple):
    """Where the record of a command is."""

    partition: int
    offset: int
    assigned: int = 0
    """The number with which the partition was assigned; see `facade.bus.port.GroupMember`."""


class CommandReader:
    """Reads commands; a record that is none is counted, and set aside if it is broken.

    What nobody can read is set aside by the device server that reads the same topic, and is only counted here.

    Parameters
    ----------
    devices
        Devices whose commands are wanted; those of others are left to their controllers.
    """

    def __init__(self, devices: Sequence[str], writer: Writer, account: StreamAccount, *, by: str) -> None:
        self._devices = frozenset(devices)
        self._writer = writer
        self._account = account
        self._by = by

    def read(self, record: Record) -> CommandMessage | None:
        """Return the command of a record; None: something else became of the record."""
        self._account.consumed += 1
        found = self._command(record)
        if isinstance(found, CommandMessage):
            return found
        self._account.settle(found)
        if isinstance(found, Rejected) and found.reason not in UNREADABLE:
            self._writer.send(dead_letter(record, found, by=self._by))
        return None

    def _command(self, record: Record) -> CommandMessage | Unused:
        message = decode_command(record.value)
        if not isinstance(message, CommandMessage):
            return message
        if message.device not in self._devices:
            return Suppressed("other-device")
        if record.key != message.device.encode():
            key = (record.key or b"").decode(errors="replace")
            return Rejected("key", "$.device", f"expected the record's key {key!r:.80}, got {message.device!r}")
        return message


class Offsets:
    """How far one member is with each partition, when commands end in any order; may be used from several threads.

    What is committed is the smallest offset that is not finished: a command that ends early does not carry away one
    that still runs.
    """

    def __init__(self, member: GroupMember, *, clock: Clock) -> None:
        self._member = member
        self._clock = clock
        self._unfinished: dict[int, set[int]] = defaultdict(set)
        self._after: dict[int, int] = {}
        """By partition: the offset behind the newest record taken."""
        self._committed: dict[int, int] = {}
        self._asked = float("-inf")
        """When the newest commit was asked for [monotonic s]."""
        self._lock = threading.Lock()
        self._committing = threading.Lock()

    def take(self, place: Place) -> None:
        """Note that a record was taken, perhaps not for the first time."""
        with self._lock:
            if place.partition not in self._after:
                self._committed[place.partition] = place.offset  # it begins where the group has committed
            self._unfinished[place.partition].add(place.offset)
            self._after[place.partition] = max(self._after.get(place.partition, 0), place.offset + 1)

    def finish(self, place: Place) -> None:
        """Note that a record needs never be taken again."""
        with self._lock:
            self._unfinished[place.partition].discard(place.offset)

    def lose(self, partition: int) -> None:
        """Forget a partition that is another's."""
        with self._lock:
            self._unfinished.pop(partition, None)
            self._after.pop(partition, None)
            self._committed.pop(partition, None)

    def prove(self, call: Call) -> None:
        """Find out that a command's partition is still ours, by a commit that leaves the command to be taken again.

        Nothing is asked about a partition that is known to be lost.

        Raises
        ------
        BusError
            It is not known whose it is.
        """
        partition = call.place.partition
        with self._committing:
            with self._lock:
                if call.life.state is State.LOST:
                    return
                # There may be nothing new to commit, but whose it is must be asked.
                due = {**self._due(), partition: self._reached(partition)}
            self._commit(due)

    def ask(self, partition: int) -> None:
        """Find out that a partition is ours, whatever runs.

        Raises
        ------
        BusError
            It is not, or that is not known.
        """
        with self._committing:
            with self._lock:
                if partition not in self._after:
                    raise BusError(f"partition {partition} is another member's")
                due = {**self._due(), partition: self._reached(partition)}
            self._commit(due)

    def commit_or_later(self, *, busy: bool = False) -> None:
        """Commit what is finished; what fails is tried again the next time. Never waits for another thread.

        Parameters
        ----------
        busy
            A command has just come: its own proof, which commits the rest as well, must not wait behind this.
        """
        if busy and self._clock.monotonic() - self._asked < _LATEST:
            return
        if not self._committing.acquire(blocking=False):
            return  # a command is about to begin, and its thread waits for this one
        try:
            with self._lock:
                due = self._due()
            if due:
                self._commit(due)
        except BusError as error:
            _log.warning("offsets will be committed later: %s", error)
        finally:
            self._committing.release()

    def _commit(self, offsets: dict[int, int]) -> None:
        self._asked = self._clock.monotonic()
        self._member.commit(offsets)
        with self._lock:
            self._committed.update(offsets)

    def _reached(self, partition: int) -> int:
        return min(self._unfinished[partition], default=self._after[partition])

    def _due(self) -> dict[int, int]:
        reached = {partition: self._reached(partition) for partition in self._after}
        return {partition: at for partition, at in reached.items() if at != self._committed.get(partition)}


class History:
    """Follows the acknowledgements and the states; all that a controller knows from before is there."""

    def __init__(
        self, open_reader: OpenReader, tracker: Tracker, states: DeviceStates, *, component: str, own: OwnStates
    ) -> None:
        self._open_reader = open_reader
        self._tracker = tracker
        self._states = states
        self._component = component
        self._own = own
        self.parents = Parents()
        self._overwritten: list[StateMessage] = []
        self._reader: Reader | None = None
        self._next: dict[str, dict[int, int]] = {ACKS: {}, STATES: {}}
        """Offset to read on from, by topic and partition."""
        self._complete = False

    def catch_up(self, timeout: float) -> bool:
        """Read on for a while; return whether everything was read that stood there when this began.

        Raises
        ------
        BusError
            The topics cannot be read now.
        """
        if self._reader is None:
            self._reader = self._open_reader({ACKS: None, STATES: None}, self._next)
        self.follow(timeout)
        done = self._reader.caught_up(ACKS) and self._reader.caught_up(STATES)
        self._complete |= done
        return done

    def follow(self, timeout: float) -> None:
        """Read on."""
        for record in () if self._reader is None else self._reader.take(_READ, timeout):
            self._next[record.topic][record.partition] = record.offset + 1
            if record.topic == ACKS:
                self._take_ack(record)
            else:
                self._take_state(record)

    def _take_state(self, record: Record) -> None:
        state = decode_state(record.value)
        if not isinstance(state, StateMessage):
            return
        if (behind := self._own.read(state)) is not None:
            self._overwritten.append(behind)
        # Ours is known already once all was read: an older one must not undo a newer one.
        if not (self._complete and (state.origin == self._component or self._own.is_older(state))):
            self._states.take(state, record.timestamp_us)

    def overwritten(self) -> list[StateMessage]:
        """Return our own newest states, once, behind which an older one was read."""
        found, self._overwritten = self._overwritten, []
        return found

    def _take_ack(self, record: Record) -> None:
        ack = decode_ack(record.value)
        if not isinstance(ack, AckMessage):
            return  # what cannot be read says nothing
        self._tracker.fold_ack(ack, 0.0)
        self.parents.fold(ack)
        if ack.states and not (self._complete and ack.origin == self._component):
            self._states.acknowledge(reported(ack), record.timestamp_us)

    def close(self) -> None:
        """Stop reading; the next `catch_up` reads to where the topics end by then."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None
