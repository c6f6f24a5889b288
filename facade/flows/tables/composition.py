"""What a device server needs for SdpCalibration: the tables, what is shown of them, their bytes, and their alerts."""

from facade.errors import IcdError
from facade.flows.tables.contents import Contents
from facade.flows.tables.flow import TablesFlow, products_of
from facade.flows.tables.losses import Losses
from facade.flows.tables.references import References
from facade.flows.tables.roots import parse_roots
from facade.flows.tables.view import CalibrationView
from facade.icd.model import Icd
from facade.runtime.composition import Server

CLASS = "SdpCalibration"
_PATIENCE = 10.0
"""Longest time for reading a small table from where a reference says that it is [s]."""


def compose(server: Server) -> None:
    """Add the tables to a device server."""
    devices, icd, clock = server.devices[CLASS], server.icd, server.clock
    prefixes = [products_of(device) for device in devices]
    flow = server.share(TablesFlow, TablesFlow)
    server.flows.append(flow)
    losses: Losses  # and what it finds is reported by an object that knows what has been reported
    reporter = server.report(lambda now: losses.find(now), lambda key: losses.is_loss(key), flow.topic)
    losses = Losses(flow, prefixes, reporter.has_reported)

    def known() -> bool:
        return server.has_read(flow.topic)

    server.views += [
        CalibrationView(device, icd.classes[CLASS], flow, server.bus.health, known=known, version=server.version)
        for device in devices
    ]
    contents = server.share(
        Contents,
        lambda: Contents(
            flow,
            prefixes,
            server.bus,
            most=largest(icd),
            references=References(parse_roots(server.settings.table_roots), clock=clock, patience=_PATIENCE),
            known=known,
            clock=clock,
        ),
    )
    server.threads.append(contents.run)


def largest(icd: Icd) -> int:
    """Return the size of the largest table whose bytes a device gives [bytes].

    Raises
    ------
    IcdError
        No query gives any.
    """
    sizes = [query.max_bytes for query in icd.classes[CLASS].queries if query.max_bytes]
    if not sizes:
        raise IcdError(f"{CLASS}.toml: queries: expected one with the result DevEncoded, got none")
    return max(sizes)
