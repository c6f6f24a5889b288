"""The demo's orders: SDP's controller switches the subarrays, and Configure goes down to their workers."""

from facade.bus.kafka.bus import KafkaBus
from facade.flows.commands.messages import ACKS, COMMANDS
from facade.flows.commands.past import One
from proving.demo.command_account import DeviceCommands
from proving.demo.journal import read_journal
from proving.demo.observing import commands_found
from proving.demo.options import ENDS_WITHIN, FLOWS_WITHIN
from proving.demo.order_account import compare_orders, families, order_lines
from proving.demo.system import Demo


def await_cascade(demo: Demo) -> None:
    """Wait until SDP's On has come to all subarrays.

    Raises
    ------
    InfraError
        It does not.
    """
    side = demo.tango_side

    def are_on() -> bool:
        states = [side.read(device, ["State"]).get("State") for device in side.subarrays]
        return all(one is not None and str(one.value) == "ON" for one in states)

    demo.progress.demand(are_on, FLOWS_WITHIN, "SDP's On has come to all subarrays")
    demo.progress.step(f"TM has switched on {side.sdp}; its controller has switched on the subarrays by orders")


def account_for_orders(demo: Demo) -> None:
    """Wait until each order has its outcome, and put their account into the report."""
    report = demo.report
    demo.progress.wait_until(
        lambda: all(line.outcome for line in order_lines(_given(demo))), ENDS_WITHIN, "the outcome of each order"
    )
    given, found = _given(demo), commands_found(demo)
    report.orders = order_lines(given)
    devices = {device: DeviceCommands(found, device) for device in sorted({one.device for one in found.commands})}
    report.order_account = compare_orders(given, devices, len(demo.tango_side.subarrays))
    report.failures += [f"orders: {line}" for line in report.order_account if not line.agrees]
    count = sum(1 for line in report.orders if line.depth)
    demo.progress.step(f"for these, controllers have given {count} orders, down to the workers")


def _given(demo: Demo) -> list[One]:
    """Return what TM gave, with the orders below it."""
    bus = KafkaBus(demo.deployment.connection, client="demo-orders")
    commands, acks = bus.read_all(COMMANDS), bus.read_all(ACKS)
    return families([one.id for one in read_journal(demo.journal_file).given if one.id], commands, acks)
