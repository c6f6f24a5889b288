"""Two controllers of one group in random order: killed, restarted, given and taken partitions, at any moment.

Handlers have no state; what is checked is how often a command is begun, when, and what it ends as.
"""

from collections import Counter
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from facade.controller.command_loop import _SPARE
from facade.flows.commands.messages import COMMANDS, CommandMessage
from tests.support.controllers import DEVICES, PARTITIONS, Crash, Life, Site
from tests.support.examples import examples

MEMBERS = ("one", "two")
EVERYTHING = frozenset(range(PARTITIONS[COMMANDS]))
NAMES = {"ReleaseAllResources": True, "Configure": False, "Abort": True}
"""Commands that an idle subarray takes, and whether they are repeatable."""
STEPS = (
    "before ACCEPTED", "after ACCEPTED", "before early commit", "after early commit", "handler", "effect",
    "before COMPLETED", "after COMPLETED", "before late commit", "after late commit",
)  # fmt: skip
ENDS = tuple(f"{when} {status}" for when in ("before", "after") for status in ("ABORTED", "FAILED", "REJECTED"))

Script = list[tuple[Any, ...]]

members, devices, names = st.sampled_from(MEMBERS), st.sampled_from(tuple(DEVICES)), st.sampled_from(tuple(NAMES))
seconds = st.sampled_from([0.01, 0.1, 0.5, 6.0])
actions = st.lists(
    st.one_of(
        st.tuples(st.just("sleep"), seconds),
        st.tuples(st.just("step"), members),
        st.tuples(st.just("catch_up"), members),
        st.tuples(st.just("start"), members),
        st.tuples(st.just("take_over"), members, devices),
        st.tuples(st.just("send"), devices, names),
        st.tuples(st.just("repeat"), st.integers(0, 50)),
        st.tuples(st.just("time_out"), st.integers(0, 50)),
        st.tuples(st.just("move"), st.frozensets(st.sampled_from(sorted(EVERYTHING)))),
        st.tuples(st.just("kill")),
    ),
    max_size=3,
)
"""What happens while a handler waits."""

crashes = st.one_of(st.just(""), st.sampled_from((*STEPS, *ENDS)))
rounds = st.tuples(devices, names, actions, actions, crashes, st.sampled_from(STEPS), actions)
"""See `Controllers.execute`."""


class Controllers(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.site = Site()
        self.sent: dict[str, CommandMessage] = {}
        for device in DEVICES:
            self.site.say(device, State="ON", obsState="IDLE")
        self.share = {"one": EVERYTHING, "two": frozenset[int]()}
        self.lives: dict[str, Life | None] = dict.fromkeys(MEMBERS)
        self.busy: set[str] = set()
        for member in MEMBERS:
            self.start(member)

    # What the world does.

    @rule(device=devices, name=names, within=st.sampled_from([0.5, 5.0, 5.0]))
    def send(self, device: str, name: str, within: float = 5.0) -> None:
        message = self.site.send(name, device, repeatable=NAMES[name], within=within)
        self.sent[message.id] = message

    @rule(which=st.integers(0, 50))
    def repeat(self, which: int) -> None:
        if self.sent:
            self.site.repeat(list(self.sent.values())[which % len(self.sent)])

    @rule(which=st.integers(0, 50))
    def time_out(self, which: int) -> None:
        open_ = [message for message in self.sent.values() if not self.site.outcome(message)]
        if open_:
            self.site.acknowledge(open_[which % len(open_)], "TIMED_OUT", origin="facade")

    @rule(late=st.booleans())
    def arrive(self, late: bool) -> None:
        """What is posted arrives at once, or when somebody waits for it; what has not arrived dies with its sender."""
        self.site.late = late

    @rule(seconds=seconds)
    def sleep(self, seconds: float) -> None:
        self.site.clock.sleep(seconds)

    # What controllers do.

    @rule(member=members)
    def start(self, member: str) -> None:
        if self.lives[member] is None and member not in self.busy:
            self.lives[member] = Life(self.site, component=member)
            alive = {one.member: self.share[name] for name, one in self.lives.items() if one is not None}
            self.site.broker.share(alive)
            self.catch_up(member)

    @rule(member=members)
    def catch_up(self, member: str) -> None:
        """Take what there is to take; after a change of partitions the past is read first."""
        self.do(member, lambda life: [life.step() for _ in range(4)])

    @rule(member=members)
    def step(self, member: str) -> None:
        self.do(member, lambda life: life.step())

    @rule(rounds=st.lists(rounds, min_size=3, max_size=8))
    def work(self, rounds: list[tuple[Any, ...]]) -> None:
        for one in rounds:
            self.execute(*one)

    def execute(
        self, device: str, name: str, before: Script, meanwhile: Script, crash: str, step: str, then: Script
    ) -> None:
        """Send a command and execute it; things happen before, while its handler waits, and at a step around it."""
        for member in MEMBERS:
            self.start(member)
        self.send(device, name)
        self.perform(before)
        for member in MEMBERS:
            self.catch_up(member)

            def work(life: Life, member: str = member) -> None:
                scripts = iter([meanwhile])  # for the first handler that waits
                life.meanwhile = lambda _: self.perform(next(scripts, []))
                self.busy.add(member)
                self.site.crash_at = crash
                self.site.when = {step: lambda: self.perform(then)}
                try:
                    while life.loop.execute_next(device):
                        life.step()
                finally:
                    self.site.crash_at, self.site.when = "", {}
                    self.busy.discard(member)

            self.do(member, work)

    def take_over(self, member: str, device: str) -> None:
        """Return a member everything, and have it execute what it finds, while the other one is in the middle."""
        if member not in self.busy:
            self.move(EVERYTHING if member == "one" else frozenset())
            self.catch_up(member)

            def work(life: Life) -> None:
                self.busy.add(member)  # a device has one thread, which is taken now
                try:
                    life.loop.execute_next(device)
                finally:
                    self.busy.discard(member)

            self.do(member, work)

    def perform(self, script: Script) -> None:
        for name, *arguments in script:
            if name == "kill":
                if self.busy:
                    raise Crash
            else:
                getattr(self, name)(*arguments)

    @rule(member=members)
    def kill(self, member: str) -> None:
        if member not in self.busy:
            self.lives[member] = None

    @rule(first=st.frozensets(st.sampled_from(sorted(EVERYTHING))))
    def move(self, first: frozenset[int]) -> None:
        """Take partitions from one member and, when it knows, give them to the other."""
        self.share = {"one": first, "two": EVERYTHING - first}
        alive = {member: life.member for member, life in self.lives.items() if life is not None}
        for given in (False, True) if alive else ():
            share = {
                one: self.share[name] & (EVERYTHING if given else one.assignment.keys()) for name, one in alive.items()
            }
            self.site.broker.share(share)
            for member in alive.values():
                member.hear()

    def do(self, member: str, work: Any) -> None:
        life = self.lives[member]
        if life is None:
            return
        try:
            work(life)
        except Crash:
            if member in self.busy:
                raise  # the handler that is waiting dies with it
            self.lives[member] = None

    # What must hold.

    @invariant()
    def nothing_is_begun_late_or_twice(self) -> None:
        begun = Counter(id for id, _ in self.site.begun)
        for id, at in self.site.begun:
            assert at * 1e6 <= self.sent[id].not_after + 1, f"{id} begun late"
        for id, times in begun.items():
            assert times <= 1 or self.sent[id].repeatable, f"{id} begun {times} times"

    @invariant()
    def outcomes_are_true(self) -> None:
        begun = {id for id, _ in self.site.begun}
        for message in self.sent.values():
            outcomes = {ack.status for ack in self.site.outcomes(message)}
            assert "COMPLETED" not in outcomes or self.site.effects[message.id]
            assert "REJECTED" not in outcomes or message.id not in begun

    def teardown(self) -> None:
        if not hasattr(self, "site"):
            return
        self.site.crash_at = ""
        self.site.late = False
        for member in MEMBERS:
            self.lives[member] = None
            self.start(member)
        for _ in range(3):
            for life in self.lives.values():
                for _ in range(6):
                    life.step()
                    for device in DEVICES:
                        while life.loop.execute_next(device):
                            life.step()
            # One that gets no partition waits for so long before it ends what an earlier life has begun.
            self.site.clock.sleep(_SPARE + 1.0)
        self.nothing_is_begun_late_or_twice()
        self.outcomes_are_true()
        for message in self.sent.values():
            assert self.site.outcome(message), f"{message.id} has no outcome: {self.site.statuses(message)}"
        for life in self.lives.values():
            account = life.loop.account
            assert account.balance == account.in_flight == 0, account.totals()
        for (topic, partition), log in self.site.broker.logs.items():
            assert topic != COMMANDS or self.site.committed(partition) == len(log)


TestControllers = Controllers.TestCase
TestControllers.settings = settings(
    max_examples=examples(400),
    stateful_step_count=10,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
