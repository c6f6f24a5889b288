"""Mirrored attributes through kills: receptors push values while they, the mirror and the broker are killed.

Sent: values of receptors, each in a journal before it is pushed. Expected: the newest value of each attribute, and each
other value or a record that values may be missing. Observed: the topic of the mirror.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import ClassVar

from facade.flows.mirror.messages import MODEL, TelescopeAttribute, decode_attribute
from facade.infra.processes import Process
from facade.kernel.bus.kafka.bus import KafkaBus
from facade.kernel.errors import BusError
from sdp_facade_lab.balance import Balance
from sdp_facade_lab.fault_runs.frame import BROKER, READY_WITHIN, FaultRun, Size, process_name
from sdp_facade_lab.mirror_account import MirrorFound, account_of, newest_wrong
from sdp_facade_lab.roles import RoleProcess
from sdp_facade_lab.telescope import pointing_of, read_pushed, rule, telescope

MIRROR = "mirror"
RIGHT_WITHIN = 5.0
"""From the last value until the newest records are right, while all runs [s]."""
_TELESCOPES = {"telescope 1": 1, "telescope 2": 2}
_RECEPTORS = 4
"""Of each telescope."""
_PERIOD = 0.02
"""Time between two values of a receptor [s]."""
_STANDSTILL = 60.0
"""Longest wait until all receptors are connected again [s]."""


class MirrorFaultRun(FaultRun):
    """One run of the mirror."""

    unit, all_is_well = "attributes", "the newest values are right; each value is on the topic or said to be missing"
    most = len(_TELESCOPES) * _RECEPTORS
    full, short = Size(most, 10), Size(most, 1)
    settings: ClassVar = {"nodes": 1, "without": "logs,logs-aggregate"}
    faults = (*_TELESCOPES, MIRROR, BROKER)
    between = (1.0, 5.0)

    def prepare(self) -> None:
        (self._device,) = self.deployment.devices("SdpMirror")
        self._records: dict[str, list[TelescopeAttribute]] = {}
        """Of each attribute, in the order of the topic."""
        self._heard = 0.0
        self._silence = 0.0
        """Longest time without a record [s]."""

    def parts(self) -> Mapping[str, Callable[[], Process]]:
        made = self.deployment
        return {
            **{part: partial(self._start, part, number) for part, number in _TELESCOPES.items()},
            MIRROR: lambda: made.server("mirror", name=MIRROR),
        }

    def begin(self) -> None:
        bus = KafkaBus(self.deployment.connection, client="account")
        bus.writer().send_durably(rule("all", [pointing_of("*")], self.clock.now()), READY_WITHIN)
        self._reader = bus.open_reader({MODEL: None}, {})
        self.demand(self._all_connected, READY_WITHIN, "all receptors are mirrored")
        self._heard, self._silence = self.clock.monotonic(), 0.0

    def step(self) -> bool:
        self._take()
        return bool(self.left)

    def in_words(self) -> str:
        return f"{sum(map(len, self._records.values())):,} records"

    def account(self) -> Balance:
        made = Balance()
        if self.progress.wait_until(self._all_connected, _STANDSTILL, "all receptors are connected") is None:
            made.wrong.append(f"{self._device}: expected all receptors to be connected, got {self._away()}")
        for part in _TELESCOPES:
            role = self.deployment.processes[process_name(part)]
            assert isinstance(role, RoleProcess)
            role.call_off()
            self.progress.demand(role.result.exists, READY_WITHIN, f"{part} stands still")
        journals = [read_pushed(self._journal(number)) for number in _TELESCOPES.values()]
        pushed = {name: times for journal in journals for name, times in journal.items()}
        begin = self.clock.monotonic()
        self.progress.wait_until(lambda: not self._wrong(pushed), RIGHT_WITHIN)
        took = self.clock.monotonic() - begin
        made.wrong += [f"{name}: not the newest value {RIGHT_WITHIN:g} s after it" for name in self._wrong(pushed)]
        made.wrong += [f"{name}: mirrored, and no receptor's" for name in self._records.keys() - pushed.keys()]
        every = MirrorFound()
        for name, times in pushed.items():
            found = account_of(times, self._records.get(name, []))
            made.wrong += differences(name, found)
            every += found
        made.rows += [
            ("attributes", len(pushed)),
            ("values pushed", every.pushed),
            ("... mirrored", every.mirrored),
            ("... missing, as a record says", every.said),
            ("... missing without a word", every.unsaid),
            ("records that say that values may be missing", every.gaps),
            ("longest silence of the topic", f"{self._silence:.1f} s"),
            ("from the last value until the newest ones are right", f"{took:.1f} s"),
        ]
        return made

    def _start(self, part: str, number: int) -> RoleProcess:
        return self.deployment.play(
            telescope,
            name=process_name(part),
            instance=str(number),
            receptors=_receptors(number),
            period=_PERIOD,
            journal=str(self._journal(number)),
        )

    def _journal(self, number: int) -> Path:
        return self.deployment.folder / f"pushed-{number}.jsonl"

    def _take(self) -> None:
        with suppress(BusError):  # the broker is away
            for record in self._reader.take(10_000, 0.0):
                message = decode_attribute(record.value)
                if isinstance(message, TelescopeAttribute):
                    self._records.setdefault(message.name, []).append(message)
                    now = self.clock.monotonic()
                    self._silence, self._heard = max(self._silence, now - self._heard), now

    def _wrong(self, pushed: Mapping[str, list[float]]) -> list[str]:
        self._take()
        return newest_wrong(pushed, self._records)

    def _all_connected(self) -> bool:
        self._take()
        return not self._away()

    def _away(self) -> list[str]:
        mirrored = self.deployment.value(self._device, "mirrored")
        missing = len(_TELESCOPES) * _RECEPTORS - int(mirrored or 0)
        return [f"{missing} receptors"] if missing else []


def differences(name: str, found: MirrorFound) -> list[str]:
    wrong = {
        "values missing without a word": found.unsaid,
        "values that nobody pushed": found.foreign,
        "numbers that are missing or came twice": found.misnumbered,
        "values in no count": found.pushed - found.mirrored - found.said - found.unsaid,
    }
    none = [f"{name}: expected values, got none"] if not found.mirrored else []
    return none + [f"{name}: {what}: expected 0, got {count}" for what, count in wrong.items() if count]


def _receptors(number: int) -> list[str]:
    return [f"ska{number}{one:02d}" for one in range(_RECEPTORS)]
