"""A simulated telescope: receptors that push where they point, and write down each value before they push it.

The role `telescope` serves them; each value begins with the time at which it was made, which no other one has.
"""

import json
import math
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import tango
from tango.server import Device, attribute, run

from facade.flows.mirror.messages import MirrorRule, rule_record
from facade.kernel.bus.port import Record
from facade.kernel.clock import SystemClock, as_time
from sdp_facade_lab.roles import RoleContext

SERVER, FAMILY, POINTING = "SimulatedTelescope", "mid-dish/dish-manager", "achievedPointing"
_SLEW = 0.01
"""How fast a receptor turns [rad/s]."""


def pointing_of(receptor: str) -> str:
    """Return the name of the attribute that says where a receptor points, as the mirror has it."""
    return f"{FAMILY}/{receptor}/{POINTING}".lower()


class Receptor(Device):
    """A receptor whose pointing is its time [Unix s], azimuth and elevation [deg], as SKA's dishes have it."""

    clock = SystemClock()
    journal: IO[str]

    def init_device(self) -> None:
        super().init_device()
        self.set_state(tango.DevState.ON)
        self.set_change_event(POINTING, True, False)
        self.turn()

    @attribute(name=POINTING, dtype=(float,), max_dim_x=3)
    def pointing(self) -> tuple[list[float], float, tango.AttrQuality]:
        return self._newest

    def turn(self) -> None:
        # Neither a Tango time nor JSON has more than microseconds.
        now = round(self.clock.now(), 6)
        value = [now, math.degrees(_SLEW * now) % 360.0, 45.0 + 10.0 * math.sin(_SLEW * now)]
        self.journal.write(json.dumps([f"{self.get_name()}/{POINTING}".lower(), now]) + "\n")
        self.journal.flush()
        self._newest = value, now, tango.AttrQuality.ATTR_VALID
        self.push_change_event(POINTING, *self._newest)


def telescope(context: RoleContext, *, receptors: list[str], period: float, journal: str, instance: str = "1") -> None:
    """Serve receptors; each pushes its pointing regularly until the role is called off, and is served on.

    Parameters
    ----------
    period
        Time between two values of a receptor [s].
    instance
        Of the device server, where several telescopes have a Tango database together.
    """
    database = tango.Database()
    for receptor in receptors:
        info = tango.DbDevInfo()
        info.server, info._class, info.name = f"{SERVER}/{instance}", "Receptor", f"{FAMILY}/{receptor}"  # noqa: SLF001
        database.add_device(info)
    with Path(journal).open("a") as Receptor.journal:

        def load() -> None:
            with tango.EnsureOmniThread():
                found = [one for one in tango.Util.instance().get_device_list("*") if isinstance(one, Receptor)]
                while not context.called_off:
                    for one in found:
                        one.turn()
                    context.clock.sleep(period)
                context.deliver({})

        def start() -> None:
            threading.Thread(target=load, daemon=True).start()
            context.announce()

        run((Receptor,), args=[SERVER, instance], post_init_callback=start, raises=True)


def read_pushed(journal: Path) -> dict[str, list[float]]:
    """Return the times of the values that were pushed, by attribute; a line that a kill has cut off is none."""
    pushed: dict[str, list[float]] = {}
    for line in journal.read_text().splitlines():
        if line.endswith("]"):
            name, time = json.loads(line)
            pushed.setdefault(name, []).append(time)
    return pushed


def rule(name: str, patterns: Sequence[str], now: float) -> Record:
    """Return the record of a rule that has them mirrored."""
    return rule_record(MirrorRule(rule=name, patterns=list(patterns), time=as_time(now), origin="telescope"))
