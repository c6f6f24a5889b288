"""The demo's telescope: where its receptors point is mirrored to the bus while their resources are held."""

from facade.bus.kafka.bus import KafkaBus
from facade.config import MOST_SUBARRAYS
from facade.flows.mirror.messages import CONNECTED, ENDED, MODEL, TelescopeAttribute, decode_attribute
from proving.demo.account import Line, disagreeing
from proving.demo.options import FLOWS_WITHIN
from proving.demo.plan import receptors_of
from proving.demo.system import Demo
from proving.mirror_account import MirrorFound, account_of, newest_wrong
from proving.roles import Role
from proving.telescope import pointing_of, read_journal, rule

MIRROR, TELESCOPE = "mirror", "telescope"
_CLASS = "SdpMirror"
_PERIOD = 0.1
"""Time between two values of a receptor [s]."""
_STANDING = f"SKA{MOST_SUBARRAYS:03d}"
"""A receptor that no subarray of the demo holds: it is mirrored all the time."""
_CONFIRMED_WITHIN = 30.0


class MirrorScenario:
    """Starts a telescope, has it mirrored, kills the mirror, and compares what is on the bus with what was pushed."""

    def __init__(self, demo: Demo) -> None:
        self._demo, self._progress = demo, demo.progress
        (self._device,) = demo.tango_side.devices[_CLASS]
        self._journal = demo.options.folder / "pushed.jsonl"
        held = [name for number in range(1, demo.options.subarrays + 1) for name in receptors_of(number)]
        self._held = [pointing_of(name) for name in held] if demo.options.controller else []
        self._receptors = [name.lower() for name in (*held, _STANDING)]

    def begin(self) -> None:
        """Let the telescope turn, and say what is mirrored.

        Raises
        ------
        InfraError
            It is not mirrored.
        """
        self._journal.unlink(missing_ok=True)
        made, writer = self._demo.deployment, self._bus().writer()
        self._role: Role = made.play(TELESCOPE, receptors=self._receptors, period=_PERIOD, journal=str(self._journal))
        made.await_ready(self._role)
        standing, by_resources = pointing_of(_STANDING), pointing_of("{receptor}")
        for name, pattern in (("standing", standing), ("pointing", by_resources)):
            writer.send_durably(rule(name, [pattern], self._demo.clock.now()), _CONFIRMED_WITHIN)
        self._progress.demand(lambda: self._mirrored() > 0, FLOWS_WITHIN, "a receptor is mirrored")
        self._progress.step(f"the telescope turns; {_STANDING} is mirrored, others as soon as a subarray holds them")

    def kill(self) -> None:
        """Kill the mirror while receptors are held, and start it again.

        Raises
        ------
        InfraError
            They are not mirrored.
        """
        some = 1 + len(self._held) // self._demo.options.subarrays
        self._progress.demand(
            lambda: self._mirrored() >= some, FLOWS_WITHIN, "the receptors of a subarray are mirrored"
        )
        self._demo.report.mirror_recovery = took = self._demo.restart(
            MIRROR,
            f"the device server {MIRROR} while {self._mirrored()} receptors are mirrored",
            lambda *_: self._mirrored() >= some,
            "the receptors",
        )
        self._demo.recorder.renew([self._device])
        self._progress.step(f"they are mirrored again {took:.2f} s after the start")

    def account(self) -> None:
        """Stop the telescope, and put what was pushed and what is on the bus into the report."""
        self._role.call_off()
        self._progress.wait_until(self._role.result.exists, FLOWS_WITHIN, "the telescope has stopped")
        pushed = read_journal(self._journal)
        standing = {pointing_of(_STANDING): pushed.get(pointing_of(_STANDING), [])}
        self._progress.wait_until(
            lambda: not newest_wrong(standing, self._records()), FLOWS_WITHIN, "the newest value is mirrored"
        )
        self._progress.wait_until(
            lambda: self._ended() == len(self._held), FLOWS_WITHIN, "no receptor is mirrored that nobody holds"
        )
        records, report = self._records(), self._demo.report
        found = sum((account_of(pushed.get(name, []), those) for name, those in records.items()), MirrorFound())
        mirrored = sum(any(one.connection == CONNECTED for one in those) for those in records.values())
        report.mirror_account = [
            Line(self._device, "receptors that were mirrored", 1 + len(self._held), mirrored),
            Line(self._device, "of these, ended with their resources", len(self._held), self._ended()),
            Line(
                self._device, "values pushed = mirrored + said to be missing", found.pushed, found.mirrored + found.said
            ),
            Line(self._device, "values missing without a word", 0, found.unsaid),
            Line(self._device, "values that no receptor pushed", 0, found.foreign),
            Line(self._device, "numbers that are missing or came twice", 0, found.misnumbered),
            Line(self._device, f"newest value of {_STANDING} is right", 1, int(not newest_wrong(standing, records))),
        ]
        report.failures += disagreeing("mirror", report.mirror_account)
        self._progress.step(
            f"mirrored: {found.mirrored:,} of {found.pushed:,} values; {found.said:,} said to be missing"
        )

    def _mirrored(self) -> int:
        shown = self._demo.tango_side.read(self._device, ["mirrored"]).get("mirrored")
        return 0 if shown is None or shown.value is None else int(shown.value)

    def _ended(self) -> int:
        return sum(those[-1].connection == ENDED for those in self._records().values())

    def _records(self) -> dict[str, list[TelescopeAttribute]]:
        found: dict[str, list[TelescopeAttribute]] = {}
        for record in self._bus().read_all(MODEL):
            if isinstance(message := decode_attribute(record.value), TelescopeAttribute):
                found.setdefault(message.name, []).append(message)
        return found

    def _bus(self) -> KafkaBus:
        return KafkaBus(self._demo.deployment.connection, client="demo-mirror")
