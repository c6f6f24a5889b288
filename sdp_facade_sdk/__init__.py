"""The public surface of the facade: everything that programs of SDP and their tests import.

    from sdp_facade_sdk import AlertSource

Names are imported when they are first asked for, so that importing the package costs nothing. All other modules of the
distribution are its inside, and may change with each release.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from devices.in_memory import MemoryContext
    from facade.archive.thinned import history
    from facade.flows.alerts.filter import AlertFilter, Comparison
    from facade.flows.alerts.follower import FollowedAlert
    from facade.flows.alerts.packets import PacketCodec, PacketContent
    from facade.flows.alerts.source import AlertSource
    from facade.flows.blocks.source import BlockSource, newest_sequence
    from facade.flows.commands.source import StateSource
    from facade.flows.mirror.telescope_model import Known, TelescopeModel
    from facade.flows.quality.records import encode_metric
    from facade.flows.reservations.ledger import Conflict, ReservationLedger, read_ledger
    from facade.flows.reservations.source import ReservationSource
    from facade.flows.tables.content import ARROW, JSON, NPY, PointingOffset, encode_pointing
    from facade.flows.tables.producer import TableProducer
    from facade.flows.tables.solution import Solution, decode_npy
    from facade.flows.tables.solution import decode as decode_solution
    from facade.flows.tables.solution import encode as encode_solution
    from facade.kernel.bus.kafka.bus import KafkaBus
    from facade.kernel.bus.kafka.opening import open_bus
    from facade.kernel.bus.memory import MemoryBus, MemoryLog
    from facade.kernel.bus.port import Fenced, Record, Writer
    from facade.kernel.config import Settings, load_settings
    from facade.kernel.errors import BusError, ConfigError, FacadeError, NotSent, OutcomeUnknown
    from facade.sdk.controller.api import Controller, Rejected
    from facade.sdk.controller.call import Call, Device
    from facade.sdk.controller.execution_state import Cancelled, NotFollowed, Order, OrderOutcome
    from facade.sdk.controller.process import run
    from facade.sdk.producer.heaps import HeapProducer, Standing
    from sdp_facade_clients.alert_subscription import AlertSubscription

__all__ = [  # noqa: RUF022 - by the parts of docs/api
    # Controllers.
    "BlockSource", "Call", "Cancelled", "Conflict", "Controller", "Device", "ReservationLedger", "NotFollowed", "Order",
    "OrderOutcome", "Rejected", "ReservationSource", "newest_sequence", "read_ledger", "run",
    # Producers.
    "ARROW", "JSON", "NPY", "AlertSource", "PacketContent", "HeapProducer", "PacketCodec", "PointingOffset", "Solution",
    "Standing", "StateSource", "TableProducer", "encode_metric", "encode_pointing", "encode_solution",
    # Readers.
    "AlertFilter", "AlertSubscription", "Comparison", "FollowedAlert", "Known", "TelescopeModel", "decode_npy",
    "decode_solution", "history",
    # The bus, its settings and errors.
    "BusError", "ConfigError", "FacadeError", "Fenced", "KafkaBus", "NotSent", "OutcomeUnknown", "Record", "Settings",
    "Writer", "load_settings", "open_bus",
    # Tests.
    "MemoryBus", "MemoryContext", "MemoryLog",
]  # fmt: skip

_MODULES = {
    "sdp_facade_clients.alert_subscription": ("AlertSubscription",),
    "devices.in_memory": ("MemoryContext",),
    "facade.archive.thinned": ("history",),
    "facade.kernel.bus.kafka.bus": ("KafkaBus",),
    "facade.kernel.bus.kafka.opening": ("open_bus",),
    "facade.kernel.bus.memory": ("MemoryBus", "MemoryLog"),
    "facade.kernel.bus.port": ("Fenced", "Record", "Writer"),
    "facade.kernel.config": ("Settings", "load_settings"),
    "facade.sdk.controller.api": ("Controller", "Rejected"),
    "facade.sdk.controller.call": ("Call", "Device"),
    "facade.sdk.controller.execution_state": ("Cancelled", "NotFollowed", "Order", "OrderOutcome"),
    "facade.sdk.controller.process": ("run",),
    "facade.kernel.errors": ("BusError", "ConfigError", "FacadeError", "NotSent", "OutcomeUnknown"),
    "facade.flows.alerts.filter": ("AlertFilter", "Comparison"),
    "facade.flows.alerts.follower": ("FollowedAlert",),
    "facade.flows.alerts.packets": ("PacketContent", "PacketCodec"),
    "facade.flows.alerts.source": ("AlertSource",),
    "facade.flows.blocks.source": ("BlockSource", "newest_sequence"),
    "facade.flows.commands.source": ("StateSource",),
    "facade.flows.mirror.telescope_model": ("Known", "TelescopeModel"),
    "facade.flows.quality.records": ("encode_metric",),
    "facade.flows.reservations.ledger": ("Conflict", "ReservationLedger", "read_ledger"),
    "facade.flows.reservations.source": ("ReservationSource",),
    "facade.flows.tables.content": ("ARROW", "JSON", "NPY", "PointingOffset", "encode_pointing"),
    "facade.flows.tables.producer": ("TableProducer",),
    "facade.flows.tables.solution": ("Solution", "decode_npy", "decode_solution", "encode_solution"),
    "facade.sdk.producer.heaps": ("HeapProducer", "Standing"),
}
_WHERE = {name: module for module, names in _MODULES.items() for name in names}
_RENAMED = {"decode_solution": "decode", "encode_solution": "encode"}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_WHERE[name]), _RENAMED.get(name, name))
    except ModuleNotFoundError as error:
        from facade.kernel.extras import advice

        text = f"{name} needs {error.name}: {advice(error, f'{_WHERE[name]}.batches')}"
        raise ModuleNotFoundError(text, name=error.name) from error
