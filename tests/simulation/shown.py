"""What must hold of what clients are shown: the pace of events, what silence leads to, alarms, and health."""

import json
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from facade.flows.alerts.flow import AlertsFlow
from facade.flows.alerts.given import GivenActions
from facade.flows.alerts.messages import ACTIONS
from facade.flows.telemetry.view import stale_after
from facade.kernel.bus.port import Record
from facade.kernel.config import Settings
from facade.kernel.icd.load import load
from facade.kernel.icd.model import Attribute
from facade.kernel.reading import Quality, Reading
from tests.simulation.alerting import DEVICE
from tests.simulation.scheduler import Process

if TYPE_CHECKING:
    from tests.simulation.site import Site

ICD = load()
SILENCE = 45.0
"""After so long without data every attribute that the ICD gives a limit is ATTR_INVALID [s]."""
NAMED_WITHIN = 6.0
"""Who is dead is named by SdpMaster within so long [s]: 3.5 s of silence, a sign of life before, and a look."""
_MASTER = "mid-sdp/control/0"
_ROUNDING = 0.01
"""[s]"""


class Pace:
    """No event comes faster than the ICD says, but for a change of quality (rule 7); told of each event.

    One event may have waited, as the process stood still, and the next one be due at once. Of three that follow each
    other, the last comes no sooner after the first than the ICD allows two to follow.
    """

    def __init__(self) -> None:
        self.found: list[str] = []
        self._last: dict[tuple[str, str], tuple[Process, Quality, deque[float]]] = {}

    def watch(self, process: Process, name: str, device: str, reading: Reading, attribute: Attribute) -> None:
        """Take an event of an attribute of a device class."""
        sampling = attribute.sampling or ICD.classes[name].sampling
        key, now = (device, attribute.name), process.clock.monotonic()
        before = self._last.get(key)
        if before is None or before[0] is not process or before[1] is not reading.quality:
            before = self._last[key] = process, reading.quality, deque(maxlen=2)
        times = before[2]
        if len(times) == 2 and now - times[0] < sampling.shortest - _ROUNDING:
            self.found.append(
                f"{device}/{attribute.name}: three events in {now - times[0]:.2f} s, and {sampling.shortest} s are the"
                " shortest time between two"
            )
        times.append(now)


class WholeWindows:
    """A window that is VALID has all that the broker appended before its end and the allowed disorder (rule 20).

    What came later may be in it or not. Only nodes that write single notifications are looked at.
    """

    def __init__(self, site: "Site") -> None:
        self.found: list[str] = []
        self._site = site
        self._read: dict[int, int] = {}
        self._appended: dict[tuple[int, int], list[int]] = {}
        """Append times by node and window [Unix us]."""
        self._devices: dict[str, Sequence[int]] = {f"mid-sdp/ingest/{node:04d}": [node] for node in range(site.nodes)}
        if site.settings.nodes == site.nodes:
            self._devices[_MASTER] = range(site.nodes)

    def watch(self, device: str, attribute: str, before: Reading | None, now: Reading) -> None:
        if attribute != "heapRate" or now.quality is not Quality.VALID or device not in self._devices:
            return
        self._look()
        window, rule = now.time // 1_000_000, ICD.topics["ingest.heaps"].window
        assert rule is not None
        times = [time for node in self._devices[device] for time in self._appended.get((node, window), ())]
        least = sum(time < (window + rule.length + rule.disorder) * 1e6 for time in times)
        if not least <= now.value * rule.length <= len(times):
            self.found.append(f"{device} shows {now.value:g} of {least} to {len(times)} heaps in window {window}")

    def _look(self) -> None:
        """Look at what has come on the topic."""
        for partition in self._site.partitions("ingest.heaps"):
            entries, after = partition.read(self._read.get(partition.number, 0), 1 << 60, committed=False)
            self._read[partition.number] = after
            for entry in entries:
                if entry.headers:
                    continue  # a batch of another node
                document = json.loads(entry.value or b"{}")
                key = document["node"], int(document["time"] // 1_000_000)
                self._appended.setdefault(key, []).append(entry.time_us)


def alarms(site: "Site") -> Iterator[str]:
    """Compare the states of the alarms with those that the log of alerts and actions gives from its beginning on."""
    server = site.servers["alerts"]
    shown = next(one for one in server.flows if isinstance(one, AlertsFlow)).ledger
    proofs = [
        Record(topic=ACTIONS, key=one.key, value=one.value, timestamp_us=one.time_us) for one in site.entries(ACTIONS)
    ]
    again = AlertsFlow(ICD, DEVICE, Settings().rack_size, GivenActions(lambda: proofs, server.clock))
    for entry in site.entries(again.topic):
        again.ledger.fire(entry.time_us)
        again.fold(
            Record(topic=again.topic, key=entry.key, value=entry.value, headers=entry.headers, partition=0,
                   offset=entry.offset, timestamp_us=entry.time_us), count=True,
        )  # fmt: skip
    again.ledger.fire(server.clock.now_us())
    states, expected = (
        {(one.condition, one.source): state for state, one in ledger.all_shown()} for ledger in (shown, again.ledger)
    )
    for key in sorted(states.keys() | expected.keys()):
        if states.get(key, "NORM") != expected.get(key, "NORM"):
            yield f"{'@'.join(key)} is {states.get(key, 'NORM')}, and {expected.get(key, 'NORM')} by the log"


def stale(site: "Site") -> Iterator[str]:
    """Return what is shown as usable although nothing has come for longer than the ICD allows."""
    for server in site.servers.values():
        for device, name in server.classes.items():
            entry = ICD.classes[name]
            for attribute in entry.attributes:
                reading = site.readings.get((device, attribute.name))
                limit = stale_after(entry, attribute)
                if reading is None or not limit or reading.quality is Quality.INVALID:
                    continue
                if (age := server.clock.now_us() - reading.time) > limit + 2_000_000:
                    name = f"{device}/{attribute.name}"
                    yield f"{name} is {reading.quality.value}, {age / 1e6:.0f} s old; limit: {limit / 1e6:g} s"


def unnamed(site: "Site", dead: str) -> Iterator[str]:
    """Return a process that is dead and not named by SdpMaster."""
    said = site.value(_MASTER, "healthInfo") or ()
    if not any(dead in line for line in said):
        yield f"{dead} is dead for {NAMED_WITHIN:g} s, and healthInfo of {_MASTER} is {said}"
