"""What flows add to the checks that follow from the ICD: each names its own by `Manifest.conformance`."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from clients.conformance.case import Check, CommandOf, DeviceOf, QueryOf
from clients.conformance.system import System
from facade.bus.port import Record
from facade.icd.model import Icd
from facade.manifest import load, manifests

FindWrong = Callable[[Icd, list[Record]], list[tuple[Record, str]]]
"""Gives the records that are not as they should be, and what is wrong with each."""


def _nothing(_: Any, __: Any) -> tuple[Any, ...]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowChecks:
    """Checks of one flow; each field gives those of one entry of any class, none of those of others."""

    command: Callable[[System, CommandOf], tuple[Check[CommandOf], ...]] = _nothing
    query: Callable[[System, QueryOf], tuple[Check[QueryOf], ...]] = _nothing
    device: Callable[[System, DeviceOf], tuple[Check[DeviceOf], ...]] = _nothing
    """Of a device as a whole, after all entries of its class."""
    conditions: Callable[[System, DeviceOf], tuple[tuple[str, Check[DeviceOf]], ...]] = _nothing
    """Of alarm conditions, with the name of each, on the device that shows them."""
    records: Mapping[str, FindWrong] = field(default_factory=dict)
    """Topics whose bytes are no JSON."""
    takes_any: frozenset[str] = frozenset()
    """Queries that refuse no argument of their type."""
    prepare: Callable[[System], None] = lambda _: None
    """Demands what a run needs, before it begins; raises ConfigError."""
    every: tuple[Check[Any], ...] = ()
    """All of them, for the list of what they look at."""


def flow_checks() -> Iterator[FlowChecks]:
    """Return the checks of all flows that are installed."""
    for one in manifests():
        if one.conformance is not None:
            yield load(one.conformance)
