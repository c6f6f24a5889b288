"""Orders of a controller to the one below it, both killed, started again and late at any moment, in random order.

An order is executed as often as a command may be, within the times of its parent, and not once it has been taken back.
Its id is the same whenever its parent runs again. A parent says that it was followed only if it was.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from facade.controller import Call, Controller, Rejected
from facade.flows.commands.messages import COMMANDS, CommandMessage, decode_command
from tests.support.controllers import FIRST, Crash, Life, Site
from tests.support.examples import examples
from tests.support.turns import Turns

ABOVE, BELOW = "above", "below"
EXECUTORS = {f"mid-sdp/processing/{number:02d}": "ProcessingController" for number in (1, 2)}
DEVICES = {ABOVE: {FIRST: "SdpSubarray"}, BELOW: EXECUTORS}
NAMES = {"Configure": False, "ReleaseAllResources": True}
"""Commands that lead to orders, and whether they are repeatable."""
ARGUMENT = {"scan_type": "target:a"}
STEPS = (
    "before ACCEPTED", "after ACCEPTED", "before COMPLETED", "after COMPLETED", "before FAILED", "after FAILED",
    "before ABORTED", "after ABORTED", "before early commit", "before late commit",
)  # fmt: skip

sides = st.sampled_from((ABOVE, BELOW))
answers = st.sampled_from(["hang", "done", "fail", "refuse"])
seconds = st.sampled_from([0.05, 1.0, 6.0, 40.0])
turns = st.integers(0, 6)
disturbances = st.one_of(
    st.tuples(st.just("abort")),
    st.tuples(st.just("kill"), sides),
    st.tuples(st.just("command"), st.sampled_from(sorted(NAMES)), st.sampled_from([1.0, 5.0])),
    st.tuples(st.just("crash"), st.sampled_from(STEPS)),
    st.tuples(st.just("repeat"), st.integers(0, 50)),
    st.tuples(st.just("time_out"), st.integers(0, 50)),
    st.tuples(st.just("answers"), answers),
    st.tuples(st.just("away")),
    st.tuples(st.just("sleep"), seconds),
    st.tuples(st.just("arrive"), st.booleans()),
)

scenes = st.tuples(
    st.sampled_from(sorted(NAMES)), answers, st.integers(0, 4), st.lists(disturbances, min_size=1, max_size=3), turns
)
"""See `Hierarchy.scene`."""


class Hierarchy(RuleBasedStateMachine):
    """The controller of a subarray, which orders two processing controllers, and the controller of these."""

    @initialize()
    def begin(self) -> None:
        self.site = Site()
        self.sent: dict[str, CommandMessage] = {}
        self.answer = "done"
        self.kills: Counter[str] = Counter()
        self.wrong: list[str] = []
        """What handlers found: what they raise fails a command only."""
        self.heard: set[str] = set()
        """Orders that were taken back, and their controller knows it."""
        self.lives: dict[str, Life | None] = dict.fromkeys((ABOVE, BELOW))
        self.threads: dict[tuple[str, str], Turns] = {}
        self.site.say(FIRST, State="ON", obsState="IDLE")
        for side in (ABOVE, BELOW):
            self.start(side)

    # What handlers do.

    def above(self, call: Call) -> None:
        if call.command in NAMES:
            call.follow(call.orders(*((device, "Prepare", ARGUMENT) for device in EXECUTORS)))

    def below(self, call: Call) -> None:
        if outcome := self.site.outcome(call.message):
            self.wrong.append(f"{call.id} begun after it was {outcome}")
        answer = self.answer
        if answer == "refuse":
            raise Rejected("not now")
        self.site.begun.append((call.id, self.site.clock.now()))
        self.work(call)
        while self.answer == "hang":
            self.work(call)
        if answer == "fail":
            raise RuntimeError("no memory")
        self.site.effects[call.id] += 1

    def work(self, call: Call) -> None:
        call.wait(1.0)
        if call.id in self.heard:
            self.wrong.append(f"{call.id} goes on although it was taken back")

    # What the world does.

    @rule(scenes=st.lists(scenes, min_size=2, max_size=5))
    def play(self, scenes: list[tuple[Any, ...]]) -> None:
        for one in scenes:
            self.scene(*one)

    def scene(self, name: str, answer: str, first: int, what: list[tuple[Any, ...]], times: int) -> None:
        """Give a command, and disturb what goes on for it; whoever is killed is started again."""
        self.answer = answer
        self.command(name, 5.0)
        self.turn(4 + first)
        for one in what:
            getattr(self, one[0])(*one[1:])
            for side in (ABOVE, BELOW):
                self.start(side)
            self.turn(times)
        self.answer = "done"
        self.turn(6)

    def command(self, name: str, within: float) -> None:
        message = self.site.send(name, FIRST, repeatable=NAMES[name], within=within)
        self.sent[message.id] = message

    def abort(self) -> None:
        message = self.site.send("Abort", FIRST)
        self.sent[message.id] = message

    def repeat(self, which: int) -> None:
        if known := [*self.sent.values(), *self.orders()]:
            self.site.repeat(known[which % len(known)])

    def time_out(self, which: int) -> None:
        """The device server gives up a command of TM; nobody but its giver does so with an order."""
        if open_ := [message for message in self.sent.values() if not self.site.outcome(message)]:
            self.site.acknowledge(open_[which % len(open_)], "TIMED_OUT", origin="facade")

    def answers(self, answer: str) -> None:
        self.answer = answer

    def arrive(self, late: bool) -> None:
        self.site.late = late

    def sleep(self, seconds: float) -> None:
        self.site.clock.sleep(seconds)

    def crash(self, step: str) -> None:
        """Whoever comes to this step next is killed there."""
        self.site.crash_at = step

    # What controllers do.

    def start(self, side: str) -> None:
        if self.lives[side] is not None:
            return
        controller = Controller(side, *set(DEVICES[side].values()), orders=["ProcessingController"] * (side == ABOVE))
        names = ("Prepare",) if side == BELOW else (*NAMES, "Abort")
        controller.command(*names)(self.below if side == BELOW else self.above)
        ordered = EXECUTORS if side == ABOVE else {}
        life = Life(
            self.site, component=side, controller=controller, devices=DEVICES[side], ordered=ordered, group=side
        )
        life.meanwhile = lambda _: self.wait()
        self.lives[side] = life

    def kill(self, side: str) -> None:
        if self.lives[side] is not None:
            self.kills[side] += 1
            self.lives[side] = None
            for place in [place for place in self.threads if place[0] == side]:
                self.threads.pop(place).kill()

    def away(self) -> None:
        """Nobody is there who would take an order, until it has timed out."""
        self.kill(BELOW)
        for _ in range(3):
            self.site.clock.sleep(12.0)
            self.turn(2)

    def step(self, side: str) -> None:
        taken_back = {order.id for order in self.orders() if self.site.outcome(order) == "ABORTED"}
        self.do(side, lambda life: life.step())
        if side == BELOW and (life := self.lives[side]) is not None and life.loop.ready:
            self.heard |= taken_back

    def go_on(self, place: tuple[str, str]) -> None:
        """Let a device's thread execute, or go on with what it executes, until its handler waits."""
        (side, device), life = place, self.lives[place[0]]
        if life is None:
            return
        if place not in self.threads:
            self.threads[place] = Turns(lambda: life.loop.execute_next(device), Crash)
        thread = self.threads[place]
        thread.resume()
        if not thread.alive or thread.error is not None:
            self.threads.pop(place, None)
        if thread.error is not None:
            if not isinstance(thread.error, Crash):
                raise thread.error
            self.kill(side)

    @rule(times=turns)
    def turn(self, times: int) -> None:
        """Time goes by, and everybody does what is due."""
        for _ in range(times):
            self.site.clock.sleep(0.3)
            for side, devices in DEVICES.items():
                self.step(side)
                for device in devices:
                    self.go_on((side, device))

    def wait(self) -> None:
        """Wait in a handler."""
        next(thread for thread in self.threads.values() if thread.mine).wait()

    def do(self, side: str, work: Callable[[Life], object]) -> None:
        if (life := self.lives[side]) is None:
            return
        try:
            work(life)
        except Crash:
            self.kill(side)

    def orders(self) -> list[CommandMessage]:
        read = (decode_command(record.value) for record in self.site.broker.read(COMMANDS))
        return list({one.id: one for one in read if one.parent}.values())

    # What must hold.

    @invariant()
    def handlers_found_nothing_wrong(self) -> None:
        assert not self.wrong

    @invariant()
    def an_order_keeps_to_its_parent(self) -> None:
        ids = defaultdict(set)
        for order in self.orders():
            parent = self.sent[order.parent]
            ids[order.parent, order.device].add(order.id)
            assert order.not_after <= order.deadline <= min(order.ceiling, parent.deadline)
            assert order.ceiling <= parent.ceiling
            assert order.transaction_id == parent.transaction_id
        assert all(len(each) == 1 for each in ids.values()), "a parent that runs again gives the same order"

    @invariant()
    def nothing_is_begun_late_or_too_often(self) -> None:
        orders = {order.id: order for order in self.orders()}
        for id, at in self.site.begun:
            assert at * 1e6 <= orders[id].not_after + 1, f"{id} begun late"
        for id, times in Counter(id for id, _ in self.site.begun).items():
            assert times <= 1 + self.kills[BELOW], f"{id} begun {times} times, {self.kills[BELOW]} kills"

    @invariant()
    def outcomes_are_true(self) -> None:
        orders = self.orders()
        for order in orders:
            outcomes = {ack.status for ack in self.site.outcomes(order)}
            assert "COMPLETED" not in outcomes or self.site.effects[order.id]
        for parent in self.sent.values():
            below = [self.site.outcome(order) for order in orders if order.parent == parent.id]
            if parent.command in NAMES and self.site.outcome(parent) == "COMPLETED":
                assert below == ["COMPLETED"] * len(EXECUTORS)
            if self.site.outcome(parent) == "ABORTED" and not self.kills[ABOVE]:
                assert all(below), f"{parent.id} was aborted, and has left orders open"

    def teardown(self) -> None:
        if not hasattr(self, "site"):
            return
        self.site.crash_at, self.site.late, self.answer = "", False, "done"
        for side in (ABOVE, BELOW):
            self.kill(side)
            self.start(side)
        for _ in range(3):
            self.turn(40)
            self.site.clock.sleep(60.0)
        self.turn(40)
        for side in (ABOVE, BELOW):
            self.kill(side)
        for check in (self.an_order_keeps_to_its_parent, self.nothing_is_begun_late_or_too_often):
            check()
        self.handlers_found_nothing_wrong()
        self.outcomes_are_true()
        for message in (*self.sent.values(), *self.orders()):
            assert self.site.outcome(message), f"{message.id} has no outcome: {self.site.statuses(message)}"


TestOrders = Hierarchy.TestCase
TestOrders.settings = settings(
    max_examples=examples(40),
    stateful_step_count=4,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
