"""Connections to web servers: an address is judged where the connection gets it.

A name server may give another answer to each question. So no name is resolved beforehand to be judged: the answer that
is judged is the one that is connected to.
"""

import importlib
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from ipaddress import IPv6Address, ip_address
from typing import Any

from facade.flows.tables.roots import AT, FORBIDDEN
from facade.outcome import RecordRejected
from facade.printable import excerpt

Resolve = Callable[[str, int, socket.AddressFamily], Awaitable[Sequence[Mapping[str, Any]]]]
"""What gives the addresses of a host's name, port and family as aiohttp's resolvers do: under the key ``host``."""
Refuse = Callable[[RecordRejected], Exception]
"""What makes an error of a refusal."""


class JudgedNames:
    """Gives aiohttp the addresses of names, unless one of them is refused.

    Parameters
    ----------
    ask
        Who knows them.
    refuse
        Makes the error that is raised.
    """

    def __init__(self, ask: Resolve, refuse: Refuse) -> None:
        self._ask, self._refuse = ask, refuse

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> Sequence[Mapping[str, Any]]:
        """Return what a connection takes its address from."""
        found = await self._ask(host, port, family)
        for one in found:
            if why := _trouble(host, one["host"]):
                raise self._refuse(RecordRejected(FORBIDDEN, AT, f"{excerpt(host)} leads to {one['host']}, {why}"))
        return found

    async def close(self) -> None:
        """Do nothing, as aiohttp asks for it."""


def client_maker(refuse: Refuse, ask: Resolve | None = None) -> Callable[..., Awaitable[Any]]:
    """Return what makes aiohttp's clients for fsspec; `ask` is the system's resolver unless given."""

    async def make(**options: Any) -> Any:
        aiohttp = importlib.import_module("aiohttp")
        names = JudgedNames(ask or aiohttp.ThreadedResolver().resolve, refuse)
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(resolver=names), **options)

    return make


def _trouble(name: str, address: str) -> str:
    """Return why a name must not lead to an address: that is never so for a store of tables, and hides something."""
    ip = ip_address(address.partition("%")[0])
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped:
        ip = ip.ipv4_mapped
    if ip.is_link_local or ip.is_multicast or ip.is_unspecified:
        return "which is no web server's: expected an address of the network"
    if ip.is_loopback and name.lower() not in ("localhost", socket.gethostname().lower()):
        return "which is this host: expected an address of the network, or localhost as the name"
    return ""
