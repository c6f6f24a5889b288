"""Hosts of a simulated site: names that one living process has, and who takes a slot of a group from whom."""

from collections import Counter
from typing import TYPE_CHECKING

from facade.bus.kafka.connection import Connection
from facade.bus.kafka.slots import SlotClaim
from facade.bus.port import Fenced
from facade.controller.api import Controller
from facade.controller.rivals import claim_devices
from tests.simulation.scheduler import Process

if TYPE_CHECKING:
    from tests.simulation.site import Site

_LATENCY = 1.0
"""After so long every broker tells of a member that has joined [s]."""


class Bound:
    """A name that a process has."""

    def __init__(self, host: "Host", name: str) -> None:
        self._host, self._name = host, name

    def close(self) -> None:
        """Give it back."""
        self._host.names.pop(self._name, None)


class Host:
    """What the kernel of one host knows; see `facade.bus.kafka.slots.Kernel`."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.names: dict[str, Process] = {}

    def at(self, process: Process) -> "HostOfProcess":
        """Return it as a process has it."""
        return HostOfProcess(self, process)


class Hosts(dict[str, Host]):
    """Each process has a host of its own name."""

    def __missing__(self, name: str) -> Host:
        self[name] = Host(name)
        return self[name]


class HostOfProcess:
    """What one process asks its host."""

    def __init__(self, host: Host, process: Process) -> None:
        self.host, self._process = host, process

    def bind(self, name: str) -> Bound | None:
        """Take a name, unless a process that is alive has it."""
        holder = self.host.names.get(name)
        if holder is not None and not holder.is_dead:
            return None
        self.host.names[name] = self._process
        return Bound(self.host, name)

    def addresses(self) -> set[str]:
        """Return the addresses of the host."""
        return {self.host.address}


class Slots:
    """Who holds the slots of the groups."""

    def __init__(self) -> None:
        self.is_claimed = False
        """Whether processes claim their slots in this run, and do not just take them over."""
        self.wrong: list[str] = []
        self.seen: Counter[str] = Counter()
        self._holders: dict[tuple[str, str], list[tuple[Process, bool]]] = {}
        """By group and member: who has it, and whether by taking over."""

    def claim(self, site: "Site", process: Process, group: str, member: str) -> bool:
        """Claim a slot as workers do; False: it is to end before.

        Raises
        ------
        Fenced
            Another process has it, and is alive.
        """
        if not self.is_claimed:
            return True
        host = process.parts["host"].at(process)
        takes_over = process.parts.get("take over", False)
        claim = SlotClaim(site.connection(process), group, member, kernel=host)
        try:
            has_it = claim.claim(take_over=takes_over)
        except Fenced:
            self.seen["refused"] += not process.is_dead
            raise
        if has_it and not process.is_dead:
            self.note(site, process, group, member, takes_over=takes_over)
        return has_it

    def claim_devices(
        self, site: "Site", process: Process, controller: Controller, devices: list[str], connection: Connection
    ) -> bool:
        """Claim devices as controllers do.

        Raises
        ------
        Fenced
            Another controller has them, and is alive.
        """
        if not self.is_claimed:
            return True
        takes_over, host = process.parts.get("take over", False), process.parts["host"].at(process)
        try:
            has_them = claim_devices(
                controller, devices, connection, take_over=takes_over, stopped=lambda: False, kernel=host
            )
        except Fenced:
            self.seen["refused"] += not process.is_dead
            raise
        if has_them and not process.is_dead:
            self.note(site, process, controller.group, controller.component, takes_over=takes_over)
        return has_them

    def note(self, site: "Site", process: Process, group: str, member: str, *, takes_over: bool) -> None:
        """Take note that a process has a slot, and from whom it must not have it."""
        self.seen["taken over" if takes_over else "taken"] += 1
        own, before = process.parts["host"], self._holders.get((group, member), [])
        holders = [(one, took_over) for one, took_over in before if not one.is_dead]
        self._holders[group, member] = [*holders, (process, takes_over)]
        if takes_over:
            return
        if any(one.parts["host"] is own and not took_over for one, took_over in holders):
            self.wrong.append(f"{member} of {group} has two holders on one host, and none took over")
        known = site.groups.groups.get(site.settings.prefix + group)
        other = known.members.get(site.settings.prefix + member) if known is not None else None
        # Who takes over is seen in the group alone; of two that are under way at once it leaves one.
        if other is not None and other.host and other.is_reachable():
            if site.scheduler.now - other.joined_at > _LATENCY:
                self.wrong.append(f"{member} of {group} is taken while its holder on {other.host} is alive")
