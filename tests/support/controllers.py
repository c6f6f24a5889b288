"""A controller on the simulation's brokers: killed at any step, started again, every execution counted."""

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from facade.flows.commands.messages import (
    ACKS,
    COMMANDS,
    AckMessage,
    CommandMessage,
    ack_record,
    command_record,
    decode_ack,
)
from facade.flows.commands.outcomes import FINAL
from facade.kernel.bus.port import Record
from facade.kernel.bus.signatures import UNSIGNED, Signatures
from facade.kernel.clock import ManualClock
from facade.kernel.errors import BusError
from facade.kernel.icd.load import load
from facade.sdk.controller.api import Controller
from facade.sdk.controller.call import Call
from facade.sdk.controller.command_loop import CommandLoop
from facade.sdp.device_state import StateMessage, state_record
from tests.support.simulated_bus import MemoryBroker, MemoryBus, MemoryMember

ICD = load()
FIRST, SECOND = "mid-sdp/subarray/01", "mid-sdp/subarray/02"
DEVICES = {FIRST: "SdpSubarray", SECOND: "SdpSubarray"}
COMPONENT = "test-controller"


class Crash(BaseException):
    """The process was killed."""


class Site:
    """The bus, which outlives every controller, and what controllers have done to the world."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.broker = MemoryBroker(self.clock)
        self.begun: list[tuple[str, float]] = []
        """Id and time of each call of a handler."""
        self.effects: Counter[str] = Counter()
        """How often each command took effect."""
        self.crash_at = ""
        self.late = False
        """Whether what is posted arrives only when somebody waits for it."""
        self.when: dict[str, Callable[[], object]] = {}
        """What happens, once, at a step."""
        self.passed: list[str] = []
        self._numbers = itertools.count(1)

    @property
    def now_us(self) -> int:
        return self.clock.now_us()

    def reach(self, step: str) -> None:
        """Come to a step of the path; die there if that was asked for."""
        self.passed.append(step)
        if step in self.when:
            self.when.pop(step)()
        if step == self.crash_at:
            self.crash_at = ""
            raise Crash(step)

    def command(
        self,
        name: str = "Configure",
        device: str = FIRST,
        *,
        repeatable: bool = True,
        within: float = 5.0,
        id: str = "",
        argument: dict[str, Any] | None = None,
    ) -> CommandMessage:
        return CommandMessage(
            id=id or f"{self.clock.now():.6f}_{next(self._numbers)}_{name}",
            device=device,
            command=name,
            argument=argument,
            transaction_id="txn-test-20261121-00001",
            issued=self.now_us,
            not_after=self.now_us + round(within * 1e6),
            deadline=self.now_us + 30_000_000,
            ceiling=self.now_us + 60_000_000,
            repeatable=repeatable,
            origin="test",
        )

    def send(self, name: str = "Configure", device: str = FIRST, **options: Any) -> CommandMessage:
        message = self.command(name, device, **options)
        self.broker.append(command_record(message, (("traceparent", b"00-01"), ("other", b"x"))))
        return message

    def repeat(self, message: CommandMessage) -> None:
        self.broker.append(command_record(message))

    def say(self, device: str = FIRST, **values: str) -> None:
        """Put states on the bus as an earlier controller would have."""
        for name, value in values.items():
            message = StateMessage(device=device, attribute=name, value=value, time=self.now_us, origin="earlier")
            self.broker.append(state_record(message))

    def acknowledge(
        self, message: CommandMessage, status: str, origin: str = "another", *, withdrawer: str = ""
    ) -> None:
        ack = AckMessage(
            id=message.id,
            device=message.device,
            command=message.command,
            status=status,
            time=self.now_us,
            origin=origin,
            withdrawer=withdrawer,
        )
        self.broker.append(ack_record(ack))

    def acks(self, message: CommandMessage | None = None) -> list[AckMessage]:
        found = [decode_ack(record.value) for record in self.broker.read(ACKS)]
        return [ack for ack in found if message is None or ack.id == message.id]

    def statuses(self, message: CommandMessage) -> list[str]:
        return [ack.status for ack in self.acks(message)]

    def outcomes(self, message: CommandMessage) -> list[AckMessage]:
        return [ack for ack in self.acks(message) if ack.status in FINAL]

    def outcome(self, message: CommandMessage) -> str:
        """The first outcome on the log, which is the one that holds; empty while there is none."""
        return next((ack.status for ack in self.outcomes(message)), "")

    def reported(self, attribute: str, device: str = FIRST) -> list[str]:
        found = [msgspec.json.decode(record.value) for record in self.broker.read("state")]
        return [one["value"] for one in found if (one["device"], one["attribute"]) == (device, attribute)]

    def committed(self, partition: int) -> int:
        return self.broker.committed.get((COMPONENT, COMMANDS, partition), 0)


class Bus(MemoryBus):
    """A bus that tells of each acknowledgement before and after it is there."""

    def __init__(self, site: Site) -> None:
        super().__init__(site.broker)
        self._site = site
        self._held: list[Receipt] = []
        """What was posted and has not arrived; it is lost when the process is killed."""
        self.refuse: Callable[[Record], bool] = lambda record: False

    def post(self, records: Sequence[Record]) -> "Receipt":
        receipt = Receipt(self, records)
        self._held.append(receipt)
        if not self._site.late:
            self.deliver()
        return receipt

    def deliver(self) -> None:
        """Let what was posted arrive, in order."""
        while self._held:
            self._held[0].deliver(self._site)
            del self._held[:1]


class Receipt:
    """Arrives when it is posted, or when somebody waits for it."""

    def __init__(self, bus: Bus, records: Sequence[Record]) -> None:
        self._bus = bus
        self._records = records
        self._refused = False
        self.confirmed = False

    def deliver(self, site: Site) -> None:
        for record in self._records:
            status = decode_ack(record.value).status if record.topic == ACKS else "state"
            site.reach(f"before {status}")
            if self._bus.refuse(record):
                self._refused = True  # and with it what is behind it
                return
            site.broker.append(record)
            site.reach(f"after {status}")
        self.confirmed = True

    def wait(self, timeout: float) -> None:
        self._bus.deliver()
        if self._refused:
            raise BusError("the bus refuses it for a while")


class Member(MemoryMember):
    """A member that tells of each commit."""

    def __init__(self, site: Site, component: str, group: str = COMPONENT) -> None:
        self._site = site
        super().__init__(site.broker, COMMANDS, group=group, slot=component)

    def commit(self, offsets: Any) -> None:
        early = "early" if self._site.passed[-1:] != ["idle"] else "late"
        self._site.reach(f"before {early} commit")
        self._taking = threading.get_ident()  # threads of a test take turns: there is nobody to wait for
        super().commit(offsets)
        self._site.reach(f"after {early} commit")


class _Pauses(ManualClock):
    """The site's clock as one life has it: while a thread pauses, the one that takes goes on."""

    def __init__(self, site: Site, meanwhile: Callable[[], None]) -> None:
        super().__init__()
        self._site = site
        self._meanwhile = meanwhile

    def now(self) -> float:
        return self._site.clock.now()

    def monotonic(self) -> float:
        return self._site.clock.monotonic()

    def sleep(self, seconds: float) -> None:
        self._site.clock.sleep(seconds)
        self._meanwhile()


class Life:
    """One life of a controller: from its start until it is killed."""

    def __init__(
        self,
        site: Site,
        *,
        component: str = COMPONENT,
        controller: Controller | None = None,
        ordered: dict[str, str] | None = None,
        devices: dict[str, str] = DEVICES,
        group: str = COMPONENT,
        handle: Callable[[Call], Any] = lambda call: None,
        signatures: Signatures = UNSIGNED,
    ) -> None:
        self.site = site
        self.devices = devices
        self.bus = Bus(site)
        self.member = Member(site, component, group)
        self.meanwhile: Callable[[Call | None], None] = lambda call: None
        """What happens while a handler waits."""
        self.handle = handle
        self.controller = controller or self._controller(component)
        self.loop = CommandLoop(
            self.controller,
            ICD,
            devices,
            self.member,
            self.bus.open_reader,
            self.bus.writer(),
            clock=_Pauses(site, self._pause),
            wait=self._wait,
            ordered=ordered or {},
            signatures=signatures,
        )
        self._stepping = False
        self._current: Call | None = None

    def _controller(self, component: str) -> Controller:
        controller = Controller(component, "SdpSubarray")
        names = [command.name for command in ICD.classes["SdpSubarray"].commands]
        controller.command(*names)(self._execute)
        return controller

    def _execute(self, call: Call) -> Any:
        site = self.site
        at = site.clock.now()
        site.reach("handler")
        site.begun.append((call.id, at))
        call.wait(1.0)
        site.effects[call.id] += 1
        site.reach("effect")
        return self.handle(call)

    def _wait(self, event: threading.Event, seconds: float) -> None:
        self.meanwhile(None)

    def _pause(self) -> None:
        if not self._stepping:
            self.step()

    def step(self) -> None:
        before, self._stepping = self._stepping, True
        self.site.passed.append("idle")
        try:
            self.loop.step(0.0)
        finally:
            self._stepping = before

    def once(self, happens: Callable[[], object]) -> None:
        """Have something happen the first time that a handler waits."""

        def first(_: Call | None) -> None:
            self.meanwhile = lambda _: None
            happens()

        self.meanwhile = first

    def start(self) -> "Life":
        """Read what was before, and get the partitions."""
        while not (self.loop.ready and self.member.assignment):
            self.step()
        return self

    def work(self) -> "Life":
        """Take and execute until there is nothing left to do."""
        self.start()
        while True:
            for _ in range(4):  # after a change of partitions the past is read first
                self.step()
            done = [self.loop.execute_next(device) for device in self.devices]
            if not any(done):
                self.step()
                return self


def live(site: Site, **options: Any) -> Life:
    """Work until killed, or until nothing is left to do."""
    life = Life(site, **options)
    try:
        life.work()
    except Crash:
        pass
    return life
