"""How a controller executes a command: the rules, and the states of a command as one table.

Theory of operation
-------------------
A command is one record on ``commands``, with a time `not_after` by which it must begin. Its outcome is the first final
acknowledgement on ``command-acks``. A controller may be killed or suspended at any moment, and the group then gives its
partitions to another one. No command may be lost, executed twice although it is not *repeatable*, or begun late:

1. *Take.* The thread that reads the topics (`command_loop`) puts the command in the queue of its device. The log
   decides first: a command with an outcome is not executed. One that was begun and cut short is executed again if it is
   repeatable, and has FAILED if it is not.
2. *Accept.* The thread of the device (`Handling`) refuses a command that its device's state forbids, or that is late
   however long it waited. Otherwise it writes ACCEPTED durably. A command that is not repeatable begins only after a
   commit has proven that its partition is still this controller's (`ownership`), and is committed from then on. A
   repeatable one is committed when its outcome is on the bus.
3. *Run.* The handler reports states and progress (`outbox`), and may give orders to other controllers (`orders`). A
   command that *overtakes* cancels the handler that runs, and ends the commands that wait.
4. *End.* The outcome is written until the bus has it, with the states that it leads to. Refusal needs the same proof of
   the partition as a begin: a controller that was suspended does not know whether another one has begun the command.

Two threads move a command: the reader of the topics, and the thread of its device. The first may take the partition
away between any two steps of the second. `TABLE` therefore has a row for each event that the second can bring
afterwards. `Handling` finds out the events, and follows the table; the guide shows the table, and a property test walks
it.
"""

import threading
from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from facade.flows.commands.messages import AckStatus


class State(Enum):
    """State of a command; the value describes it."""

    TAKEN = "its record was read"
    WAITING = "it waits for its turn"
    OVERTAKING = "it waits, and has ended other commands; its device may be in any obsState"
    STARTING = "its turn has come; the controller checks the log, the time and the state of the device"
    ALLOWED = "it may begin, if State permits it; ACCEPTED is being written"
    RESUMING = "it may begin again: it is repeatable, and a crash interrupted it"
    LOST = "its partition was taken away before it began"
    ACCEPTED = "it is repeatable, and ACCEPTED is on the bus"
    OWNED = "it is not repeatable, ACCEPTED is on the bus, and a commit proved that this controller owns its partition"
    RUNNING = "its handler runs, and may still refuse"
    IN_PROGRESS = "its handler runs, and may not refuse: progress was reported, or it was begun before"
    ENDING = "its outcome is being written"
    ENDED = "its outcome is on the bus"
    SKIPPED = "it is not executed: it has an outcome, or another controller is responsible for it"
    MOVED = "it is left to the member that has its partition now"
    LEFT = "it is left to the next start of this controller"


class Event(Enum):
    """Event of a command; the value describes it."""

    QUEUED = "it is put in the queue of its device"
    OVERTOOK = "it has cancelled or ended other commands"
    OVERTAKEN = "another command ends it while it waits"
    HAS_OUTCOME = "`command-acks` has an outcome"
    BEGUN_HERE = "this controller began it before a restart, and it is not repeatable"
    BEGUN_ELSEWHERE = "another controller began it, and it is not repeatable"
    BEGUN_BEFORE = "it was begun before, and is repeatable"
    PARTITION_LOST = "its partition is taken away"
    TURN = "the commands before it are done"
    LATE = "`not_after` has passed"
    REFUSED = "its name is unknown, the queue is full, the state of its device forbids it, or its handler refuses it"
    PERMITTED = "the state of its device allows it"
    ACCEPT = "ACCEPTED is on the bus"
    PROVE = "ACCEPTED is on the bus, and a commit has proven that this controller owns its partition"
    BEGIN = "its handler is called"
    PROGRESS = "its handler reports progress"
    RETURN = "its handler returns"
    FAIL = "its handler fails, or must end and cannot be repeated"
    CANCEL = "the thread of its device finds that it is cancelled"
    CONFIRM = "its outcome is on the bus"
    MOVE = (
        "it is repeatable, and this controller has lost its partition, so another controller may have begun it as well"
    )
    STOP = "the controller ends"


class Effect(Enum):
    """An action besides writing the outcome; the value describes it."""

    REPEAT = "write the outcome again"
    HOOK = "call the hook for interrupted commands"
    COMMIT = "its offset may be committed"


class Transition(NamedTuple):
    """The result of an event: the effects in order, then the outcome if there is one."""

    state: State
    outcome: AckStatus | None = None
    effects: tuple[Effect, ...] = ()
    reason: str = ""
    """Reason for the account why its record was not used."""


def _end(outcome: AckStatus, *effects: Effect) -> Transition:
    return Transition(State.ENDING, outcome, effects)


def _skip(reason: str, *before: Effect) -> Transition:
    return Transition(State.SKIPPED, None, (*before, Effect.COMMIT), reason)


_LEFT = Transition(State.LEFT)
_MOVED = Transition(State.MOVED, reason="moved")
_HAS_OUTCOME = _skip("ended-before", Effect.REPEAT)
_BY_THE_LOG = {
    Event.HAS_OUTCOME: _HAS_OUTCOME,
    Event.BEGUN_HERE: _end("FAILED", Effect.HOOK),
    Event.BEGUN_ELSEWHERE: _skip("begun-before"),
}
_IN_QUEUE = {**_BY_THE_LOG, Event.OVERTAKEN: _end("ABORTED"), Event.PARTITION_LOST: _MOVED}
_BEFORE_ACCEPTANCE = {
    **_BY_THE_LOG,
    Event.BEGUN_BEFORE: Transition(State.RESUMING),
    Event.LATE: _end("REJECTED"),
    Event.PARTITION_LOST: Transition(State.LOST),
    Event.STOP: _LEFT,
}
_AFTER_ACCEPTANCE = {
    Event.HAS_OUTCOME: _HAS_OUTCOME,
    Event.CANCEL: _end("ABORTED"),
    Event.LATE: _end("REJECTED"),
    Event.BEGIN: Transition(State.RUNNING),
    Event.STOP: _LEFT,
}
_IN_HANDLER = {
    Event.PROGRESS: Transition(State.IN_PROGRESS),
    Event.RETURN: _end("COMPLETED"),
    Event.FAIL: _end("FAILED"),
    Event.CANCEL: _end("ABORTED"),
    Event.MOVE: _MOVED,
    Event.STOP: _LEFT,
}
_WHILE_LOST = (Event.HAS_OUTCOME, Event.BEGUN_ELSEWHERE, Event.BEGUN_BEFORE, Event.LATE,
               Event.REFUSED, Event.PERMITTED, Event.ACCEPT, Event.PROVE, Event.BEGIN, Event.CANCEL)  # fmt: skip

TABLE: Mapping[State, Mapping[Event, Transition]] = {
    State.TAKEN: {
        **_BY_THE_LOG,
        Event.QUEUED: Transition(State.WAITING),
        Event.OVERTOOK: Transition(State.OVERTAKING),
        Event.BEGUN_BEFORE: Transition(State.TAKEN),
        Event.REFUSED: _end("REJECTED"),
    },
    State.WAITING: {
        **_IN_QUEUE,
        Event.BEGUN_BEFORE: Transition(State.WAITING),
        Event.QUEUED: Transition(State.WAITING),
        Event.TURN: Transition(State.STARTING),
    },
    State.OVERTAKING: {
        **_IN_QUEUE,
        Event.BEGUN_BEFORE: Transition(State.OVERTAKING),
        Event.QUEUED: Transition(State.OVERTAKING),
        Event.REFUSED: _end("REJECTED"),
        Event.TURN: Transition(State.ALLOWED),
    },
    State.STARTING: {
        **_BEFORE_ACCEPTANCE,
        Event.REFUSED: _end("REJECTED"),
        Event.PERMITTED: Transition(State.ALLOWED),
    },
    State.ALLOWED: {
        **_BEFORE_ACCEPTANCE,
        Event.REFUSED: _end("REJECTED"),
        Event.ACCEPT: Transition(State.ACCEPTED),
        Event.PROVE: Transition(State.OWNED, None, (Effect.COMMIT,)),
    },
    State.RESUMING: {
        Event.HAS_OUTCOME: _HAS_OUTCOME,
        Event.CANCEL: _end("ABORTED"),
        Event.LATE: _end("FAILED", Effect.HOOK),
        Event.BEGIN: Transition(State.IN_PROGRESS),
        Event.PARTITION_LOST: Transition(State.LOST),
        Event.STOP: _LEFT,
    },
    State.LOST: {
        **dict.fromkeys(_WHILE_LOST, _MOVED),
        Event.BEGUN_HERE: _BY_THE_LOG[Event.BEGUN_HERE],  # its new owner leaves it to us
        Event.PARTITION_LOST: Transition(State.LOST),
        Event.STOP: _LEFT,
    },
    State.ACCEPTED: {**_AFTER_ACCEPTANCE, Event.PARTITION_LOST: Transition(State.LOST)},
    State.OWNED: {**_AFTER_ACCEPTANCE, Event.PARTITION_LOST: Transition(State.OWNED)},
    State.RUNNING: {**_IN_HANDLER, Event.REFUSED: _end("REJECTED"), Event.PARTITION_LOST: Transition(State.RUNNING)},
    # In the table of outcomes nothing is refused after it is in progress.
    State.IN_PROGRESS: {
        **_IN_HANDLER,
        Event.REFUSED: _end("FAILED"),
        Event.PARTITION_LOST: Transition(State.IN_PROGRESS),
    },
    State.ENDING: {
        Event.CONFIRM: Transition(State.ENDED, None, (Effect.COMMIT,)),
        Event.PARTITION_LOST: Transition(State.ENDING),
        Event.STOP: _LEFT,
    },
    **{one: {Event.PARTITION_LOST: Transition(one)} for one in (State.ENDED, State.SKIPPED, State.MOVED, State.LEFT)},
}
"""The step for each event in each state; any other event is a bug."""

FINAL = frozenset(one for one, steps in TABLE.items() if {step.state for step in steps.values()} == {one})


class CommandState:
    """The state of one command; may be used from several threads."""

    def __init__(self) -> None:
        self.state = State.TAKEN
        self.again = False
        """Whether it was begun before, and interrupted by a crash."""
        self._lock = threading.Lock()

    @property
    def over(self) -> bool:
        """Return whether the state is final."""
        return self.state in FINAL

    def happen(self, event: Event) -> Transition:
        """Change to the next state, and return its step."""
        with self._lock:
            step = TABLE[self.state].get(event)
            if step is None:
                raise RuntimeError(f"expected one of {[one.name for one in TABLE[self.state]]} for a command that is"
                                   f" {self.state.name}, got {event.name}")  # fmt: skip
            self.state = step.state
            self.again = self.again or step.state is State.RESUMING
            return step
