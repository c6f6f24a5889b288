"""SDP's controllers: handlers of commands, and the rules that make their execution safe.

Programs import them from `sdp_facade_sdk`. Names are imported at their first use, so that importing the package costs
nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from facade.sdk.controller.api import Controller, Rejected
    from facade.sdk.controller.call import Call, Device
    from facade.sdk.controller.execution_state import Cancelled, NotFollowed, Order, OrderOutcome
    from facade.sdk.controller.process import run

__all__ = [
    "Call", "Cancelled", "Controller", "Device", "NotFollowed", "Order", "OrderOutcome", "Rejected", "run",
]  # fmt: skip
_ELSEWHERE = {
    "Call": "call", "Device": "call", "run": "process",
    "Cancelled": "execution_state", "NotFollowed": "execution_state", "Order": "execution_state",
    "OrderOutcome": "execution_state",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ELSEWHERE.get(name, 'api')}"), name)
