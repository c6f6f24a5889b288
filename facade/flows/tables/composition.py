"""What a device server needs for SdpCalibration: the tables, what is shown of them, their bytes, and their alerts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from facade.clock import Clock
from facade.config import Settings
from facade.errors import IcdError
from facade.flows.alerts.own import OwnAlerts
from facade.flows.tables.claims import Claims
from facade.flows.tables.contents import Bus, Contents
from facade.flows.tables.flow import TablesFlow, products_of
from facade.flows.tables.losses import Losses
from facade.flows.tables.roots import parse_roots
from facade.flows.tables.view import CalibrationView
from facade.icd.model import Icd

CLASS = "SdpCalibration"
_PATIENCE = 10.0
"""Longest time for reading a small table from where a reference says that it is [s]."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """The parts of one device server that are about tables."""

    tables: TablesFlow
    views: list[CalibrationView]
    contents: Contents


def calibration(
    icd: Icd,
    settings: Settings,
    devices: Sequence[str],
    bus: Bus,
    has_read: Callable[..., bool],
    tell: Callable[..., OwnAlerts],
    *,
    version: str,
    clock: Clock,
) -> Calibration:
    """Make them.

    Parameters
    ----------
    has_read
        Whether all has been read that stood on some topics at the start.
    tell
        Lets what is found be told as alerts.
    """
    flow, prefixes = TablesFlow(icd), [products_of(device) for device in devices]
    losses: Losses  # and what it finds is told by whoever knows what has been told
    own = tell(lambda now: losses.find(now), lambda key: losses.is_loss(key), flow.topic)
    losses = Losses(flow, prefixes, own.has_reported)

    def known() -> bool:
        return has_read(flow.topic)

    views = [
        CalibrationView(device, icd.classes[CLASS], flow, bus.health, known=known, version=version)
        for device in devices
    ]
    contents = Contents(
        flow,
        prefixes,
        bus,
        icd,
        most=largest(icd),
        claims=Claims(parse_roots(settings.table_roots), clock=clock, patience=_PATIENCE),
        known=known,
        clock=clock,
    )
    return Calibration(flow, views, contents)


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
