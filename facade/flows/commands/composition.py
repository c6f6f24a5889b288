"""What a device server needs for devices that take commands: flows, views, the gateway, and what is to be kept up."""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from facade.bus.port import BusHealth
from facade.clock import Clock
from facade.flows.commands.arguments import Arguments
from facade.flows.commands.flow import Components, flows
from facade.flows.commands.gateway import Gateway, Sender
from facade.flows.commands.lease import Lease
from facade.flows.commands.messages import ACKS, COMMANDS, HEARTBEATS
from facade.flows.commands.periodic import PeriodicTask, Post
from facade.flows.commands.tracker import Tracker
from facade.flows.commands.view import CommandSources, CommandView, SubarrayView
from facade.icd.model import DeviceClass, Icd
from facade.runtime.device_state import TOPIC as STATES
from facade.runtime.device_state import DeviceStates
from facade.runtime.flow import Flow, View

SUBARRAY = "SdpSubarray"


class CommandSender(Sender, Post, Protocol):
    """Puts commands on the bus."""


@dataclass(frozen=True, slots=True)
class Commands:
    """The parts of one device server that are about commands."""

    flows: list[Flow]
    views: list[View]
    gateway: Gateway
    periodic_tasks: PeriodicTask
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
    views, subarrays = _views(classes, sources, version)
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
    periodic_tasks = PeriodicTask(
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
        [states, *flows(icd, tracker, states, lease, components, clock)], views, gateway, periodic_tasks, components
    )


def _views(
    classes: Mapping[str, DeviceClass], sources: CommandSources, version: str
) -> tuple[list[View], dict[str, SubarrayView]]:
    views: list[View] = []
    subarrays: dict[str, SubarrayView] = {}
    for device, device_class in classes.items():
        views.append(CommandView(device, device_class, sources.tracker, sources.known))
        if device_class.name == SUBARRAY:
            subarrays[device] = SubarrayView(device, device_class, sources, version)
            views.append(subarrays[device])
    return views, subarrays
