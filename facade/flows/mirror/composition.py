"""What a device server needs for SdpMirror: the rules, the mirror, and what is shown of it."""

import re
from collections.abc import Callable, Iterable

from facade.errors import ConfigError
from facade.flows.mirror.choice import Choice
from facade.flows.mirror.faults import CONDITIONS, find_faults
from facade.flows.mirror.mirror import Mirror
from facade.flows.mirror.source import Source
from facade.flows.mirror.streaming import forms_of
from facade.flows.mirror.view import MirrorView
from facade.icd.model import Icd
from facade.instances import pattern_of
from facade.manifest import load
from facade.runtime.composition import Server
from facade.runtime.device_state import TOPIC as STATES

CLASS = "SdpMirror"
SOURCE = "devices.mirror:TangoSource"
"""What talks to the devices of the telescope; only `devices/` knows Tango."""


def compose(server: Server) -> None:
    """Add the mirror to a device server.

    Raises
    ------
    ConfigError
        There are several devices: each attribute would be mirrored twice. Or a form is chosen that is not to be had.
    """
    forms = forms_of(server.settings)
    device, *more = server.devices[CLASS]
    if more:
        raise ConfigError(f"devices of {CLASS} in instance {server.instance}: expected one, got {device} and {more}")
    is_own = own_devices(server.icd)
    choice = Choice(is_own)
    server.flows.append(choice)
    if server.states not in server.flows:
        server.flows.append(server.states)
    server.states.listeners.append(choice.take)

    def known() -> bool:
        return server.has_read(choice.topic, STATES)

    def make() -> Mirror:
        source = server.share(Source, load(SOURCE))  # type: ignore[type-abstract]
        writer, incarnation = server.bus.writer(), server.sign_of_life.incarnation
        return Mirror(*(source, writer, choice), known=known, clock=server.clock, incarnation=incarnation, forms=forms)

    mirror = server.share(Mirror, make)
    entry, health = server.icd.classes[CLASS], server.bus.health
    server.views.append(MirrorView(device, entry, mirror, choice, health, known=known, version=server.version))
    topics = choice.topic, STATES
    server.report(lambda _: find_faults(mirror, device), lambda key: key[0] in CONDITIONS, *topics, others=device)
    server.threads.append(lambda stop: mirror.run(stop, server.bus))


def own_devices(icd: Icd) -> Callable[[str], bool]:
    """Return what tells whether a device is one of the facade's, by the interface's names."""
    names: Iterable[str] = (pattern_of(one.device) for one in icd.classes.values())
    found = re.compile(rf"(?:tango://[^/]+/)?(?:{'|'.join(names)}|dserver/SdpFacade/.*)", re.IGNORECASE)
    return lambda device: found.fullmatch(device) is not None
