"""A slot belongs to one living process: a newcomer does not take it from a process that is alive.

A static member of a consumer group is fenced by the next process of its name, whoever that is. This is what lets a
restarted worker go on within half a second, and what would let a second one end the first by mistake. So a newcomer
asks first:

* On one host, the kernel knows. Each holder binds an abstract Unix socket of the slot's name, which disappears with
  its process, however that ends.
* From other hosts, the group knows. A member that was killed disappears after its session time-out; one that is still
  there then is alive.
"""

import ipaddress
import logging
import socket
import sys
from collections.abc import Callable
from hashlib import sha256
from typing import Protocol

import psutil
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from facade.bus.kafka.connection import Connection
from facade.bus.port import Fenced
from facade.errors import BusError

_log = logging.getLogger(__name__)

_PATIENCE = 9.0
"""A member that was killed is gone after its session time-out, 6 s; longest wait for that [s]."""
_LOOK = 0.5
"""Time between two looks at the group [s]."""
_ANSWER = 5.0
"""Longest wait for the broker's answer [s]."""
_SUCCESSIONS = 4
"""Sockets of a slot: one that takes over cannot bind the socket of the process that has not ended yet."""


class Bound(Protocol):
    """A name on this host that the process has."""

    def close(self) -> None:
        """Give it back; the end of the process does so as well."""


class Kernel(Protocol):
    """As much of this host as is needed."""

    def bind(self, name: str) -> Bound | None:
        """Take a name for this process; None: a process has it, which is alive."""

    def addresses(self) -> set[str]:
        """Return the addresses of this host, in one form."""


class LinuxKernel:
    """See `Kernel`."""

    def bind(self, name: str) -> socket.socket | None:
        """Bind an abstract Unix socket."""
        one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            one.bind(name)
        except OSError:
            one.close()
            return None
        return one

    def addresses(self) -> set[str]:
        """Return the addresses of all interfaces."""
        found = psutil.net_if_addrs().values()
        return {_address(one.address) for all_of in found for one in all_of if one.family.name.startswith("AF_INET")}


KERNEL = LinuxKernel()
_held: set[Bound] = set()
"""Names of this process: a slot is held until the process ends, whatever becomes of the claim."""


class SlotClaim:
    """A slot of a consumer group, before its holder joins the group.

    Parameters
    ----------
    group, member
        Consumer group, and the name of the static member, both without the deployment's prefix.
    kernel
        This host.
    """

    def __init__(self, connection: Connection, group: str, member: str, *, kernel: Kernel = KERNEL) -> None:
        self._connection, self._kernel = connection, kernel
        self._group, self._member = connection.prefix + group, connection.prefix + member
        self._bound: Bound | None = None
        self._others: list[str] = []
        """Names of the slot's other sockets."""

    def claim(self, *, take_over: bool = False, stopped: Callable[[], bool] = lambda: False) -> bool:
        """Take the slot for this process until it ends; return False when waiting was to end before.

        Parameters
        ----------
        take_over
            Whether to take it from a process that is alive, which then ends.
        stopped
            Whether waiting is to end.

        Raises
        ------
        Fenced
            Another process has the slot, and is alive.
        """
        clock = self._connection.clock
        deadline, is_first = None, True
        while not stopped():
            try:
                self._hold(take_over=take_over)
                host = None if take_over else self._foreign_holder()
            except Fenced:
                raise
            except BusError as error:
                _log.warning("waiting for the broker before slot %s is taken: %s", self._member, error)
                clock.sleep(_LOOK)
                continue
            if host is None:
                if not take_over:
                    self._demand_alone()
                return True
            deadline = deadline or clock.monotonic() + _PATIENCE
            if clock.monotonic() > deadline:
                raise Fenced(self._refusal(f"on host {host}"))
            if is_first:
                _log.info("slot %s was held on host %s; waiting until that is known to have ended", self._member, host)
            is_first = False
            clock.sleep(_LOOK)
        return False

    def release(self) -> None:
        """Let another process have it; the end of the process does so as well."""
        if self._bound is not None:
            _held.discard(self._bound)
            self._bound.close()
            self._bound = None

    def _hold(self, *, take_over: bool) -> None:
        """Bind the slot's socket; systems without abstract sockets rely on the group alone."""
        if self._bound is not None or sys.platform != "linux":
            return
        whole = f"{self._cluster()}/{self._group}/{self._member}"
        name = f"\0sdp-facade/{sha256(whole.encode()).hexdigest()}"  # a socket's name has at most 107 characters
        names = [f"{name}/{number}" for number in range(_SUCCESSIONS)]
        bound = {one: found for one in names if (found := self._kernel.bind(one)) is not None}
        mine = next(iter(bound)) if bound and (take_over or len(bound) == _SUCCESSIONS) else None
        for one, found in bound.items():
            if one != mine:
                found.close()
        if mine is None:
            raise Fenced(self._refusal("on this host"))
        self._bound, self._others = bound[mine], [one for one in names if one != mine]
        _held.add(self._bound)

    def _demand_alone(self) -> None:
        """Refuse if a process of this host has taken over meanwhile: the group says no more than the host."""
        for name in self._others:
            if (found := self._kernel.bind(name)) is None:
                self.release()
                raise Fenced(self._refusal("on this host"))
            found.close()

    def _cluster(self) -> str:
        admin = self._admin()
        try:
            return str(admin.describe_cluster(request_timeout=_ANSWER).result(timeout=_ANSWER).cluster_id)
        except (KafkaException, TimeoutError) as error:
            raise BusError(f"no answer from {self._connection.bootstrap} within {_ANSWER:g} s") from error

    def _foreign_holder(self) -> str | None:
        """Return the other host on which a process has the slot; None: no process has it, or one of this host had it.

        Raises
        ------
        BusError
            The broker does not answer.
        """
        admin = self._admin()  # its futures are kept only as long as it lives
        try:
            asked = admin.describe_consumer_groups([self._group], request_timeout=_ANSWER)[self._group]
            members = asked.result(timeout=_ANSWER).members
        except KafkaException as error:
            if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
                return None
            raise BusError(f"group {self._group} cannot be looked at: {error.args[0]}") from error
        except TimeoutError as error:
            raise BusError(f"no answer about group {self._group} within {_ANSWER:g} s") from error
        own = self._kernel.addresses()
        for member in members:
            if member.group_instance_id == self._member and _address(member.host) not in own:
                return str(member.host).removeprefix("/")
        return None

    def _admin(self) -> AdminClient:
        return self._connection.admin()

    def _refusal(self, where: str) -> str:
        return (
            f"slot {self._member} of group {self._group}: expected that no other process has it, got one {where} that"
            " is alive. Start this one with a name of its own (--slot, --name), or end the other one (--take-over)"
        )


def _address(text: str) -> str:
    """Return an address in one form; brokers put a slash before it, and interfaces their name behind it."""
    plain = text.removeprefix("/").partition("%")[0]
    try:
        return str(ipaddress.ip_address(plain))
    except ValueError:
        return plain
