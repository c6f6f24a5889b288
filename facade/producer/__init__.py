"""The SDK for SDP's ingest nodes: columnar batches that survive an outage of the brokers.

    from facade.producer import HeapProducer

Names are imported when they are first asked for, so that importing the package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from facade.producer.heaps import HeapProducer

__all__ = ["HeapProducer"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.heaps"), name)
