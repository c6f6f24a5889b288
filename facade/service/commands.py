"""What a device server needs for devices that take commands: flows, panels, the gateway, and what is to be kept up."""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from facade.bus.port import BusHealth
from facade.clock import Clock
from facade.commands.arguments import Arguments
from facade.commands.flows import Components, flows
from facade.commands.gateway import Gateway, Sender
from facade.commands.lease import Lease
from facade.commands.messages import ACKS, COMMANDS, HEARTBEATS
from facade.commands.panel import CommandPanel, CommandSources, SubarrayPanel
from facade.commands.tracker import Tracker
from facade.commands.upkeep import Post, Upkeep
from facade.device_state import TOPIC as STATES
from facade.device_state import DeviceStates
from facade.flow import Flow, Panel
from facade.icd.model import DeviceClass, Icd

SUBARRAY = "SdpSubarray"


class CommandSender(Sender, Post, Protocol):
    """Puts commands on the bus."""


@dataclass(frozen=True, slots=True)
class Commands:
    """The parts of one device server that are about commands."""

    flows: list[Flow]
    panels: list[Panel]
    gateway: Gateway
    upkeep: Upkeep
    components: Components


def commands(
    icd: Icd,
    classes: Mapping[str, DeviceClass],
    states: DeviceStates,
    health: BusHealth,
    sender: CommandSender,
    has_read: Callable[..., bool],
    master_state: Callable[[], str],
    *,
    instance: str,
    version: str,
    clock: Clock,
) -> Commands:
    """Make them.

    Parameters
    ----------
    classes
        Device class by device that takes commands.
    has_read
        Whether all has been read that stood on some topics at the start.
    master_state
        Gives the state of those that are no subarrays.
    """
    devices, components = list(classes), Components()
    incarnation = f"{clock.now():.3f}-{secrets.token_hex(4)}"
    tracker, lease = Tracker(devices), Lease(instance, incarnation)
    sources = CommandSources(
        tracker=tracker,
        states=states,
        components=components,
        lease=lease,
        health=health,
        known=lambda: has_read(STATES, COMMANDS, ACKS, HEARTBEATS),
        clock=clock,
    )
    panels, subarrays = _panels(classes, sources, version)
    gateway = Gateway(
        classes=classes,
        arguments=Arguments(icd),
        states=states,
        device_state=lambda device: subarrays[device].state() if device in subarrays else master_state(),
        tracker=tracker,
        lease=lease,
        sender=sender,
        ready=sources.known,
        origin=instance,
        clock=clock,
    )
    upkeep = Upkeep(
        component=instance,
        incarnation=incarnation,
        devices=devices,
        version=version,
        post=sender,
        lease=lease,
        tracker=tracker,
        caught_up=sources.known,
        clock=clock,
    )
    return Commands(
        [states, *flows(icd, tracker, states, lease, components, clock)], panels, gateway, upkeep, components
    )


def _panels(
    classes: Mapping[str, DeviceClass], sources: CommandSources, version: str
) -> tuple[list[Panel], dict[str, SubarrayPanel]]:
    panels: list[Panel] = []
    subarrays: dict[str, SubarrayPanel] = {}
    for device, device_class in classes.items():
        panels.append(CommandPanel(device, device_class, sources.tracker, sources.known))
        if device_class.name == SUBARRAY:
            subarrays[device] = SubarrayPanel(device, device_class, sources, version)
            panels.append(subarrays[device])
    return panels, subarrays
