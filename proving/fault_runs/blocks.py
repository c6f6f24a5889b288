"""The fault run of processing blocks: controllers tell their states while everything is killed."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import tango
import typer

from facade.bus.kafka.bus import KafkaBus
from facade.errors import BusError
from facade.flows.blocks.source import BLOCKS, read_block
from facade.infra.processes import Process
from facade.messages import ProcessingBlock
from proving.deployment import Deployment
from proving.fault_runs.block_account import ATTRIBUTES, CONDITION, Found, differences
from proving.fault_runs.block_controller import count_confirmed, read_confirmed
from proving.fault_runs.block_scenario import REMOVED, SUBARRAYS, newest, plan
from proving.fault_runs.frame import BROKER, Account, FaultRun, Folder, Seed, play, process_name

_QUICK, _QUICK_KILLS = 6_000, 1
_RATE = 600
"""Records of all controllers together [1/s]: 180,000 in five minutes."""
_SERVERS = {"device server of subarrays": "subarray", "device server of SdpMaster": "control"}
_CONTROLLERS = {f"controller {number}": number for number in range(1, SUBARRAYS + 1)}
_STANDSTILL = 90.0
"""Without a record more for so long, no controller can tell anything any more [s]."""
_AGREE_WITHIN = 60.0
_NOTHING = ("DeadLettered", "Balance", "Overlap", "Skipped")
"""Figures of the account of the topic that are 0."""


class BlockFaultRun(FaultRun):
    """One run of the processing blocks.

    Parameters
    ----------
    kills
        How often each part is killed.
    """

    faults = (*_CONTROLLERS, *_SERVERS, BROKER)
    between = (1.0, 4.0)

    def __init__(self, deployment: Deployment, *, records: int, kills: int, seed: int) -> None:
        super().__init__(deployment, seed)
        self._records, self.left = -(-records // SUBARRAYS), kills * len(self.faults)
        self._plans = {number: plan(seed, number, self._records) for number in _CONTROLLERS.values()}
        self._task: dict[str, Any] = {"seed": seed, "records": self._records, "interval": SUBARRAYS / _RATE}
        (self._master,) = deployment.devices("SdpMaster")
        (self._bus,) = deployment.devices("SdpBus")
        (self._alerts,) = deployment.devices("SdpAlerts")
        self._count = 0
        self._moved = self.clock.monotonic()

    def parts(self) -> Mapping[str, Callable[[], Process]]:
        """Return controllers and device servers."""
        made = self.deployment
        return {
            **{
                part: lambda part=part, instance=instance: made.server(instance, name=process_name(part))
                for part, instance in {**_SERVERS, "device server of SdpAlerts": "alerts"}.items()
            },
            **{
                part: lambda part=part, number=number: made.play(
                    "tell-blocks",
                    name=process_name(part),
                    journal=str(self._journal(number)),
                    subarray=number,
                    **self._task,
                )
                for part, number in _CONTROLLERS.items()
            },
        }

    def step(self) -> bool:
        """Go on until all is told and all faults were injected, or nothing more is told."""
        count = sum(count_confirmed(self._journal(number)) for number in self._plans)
        if count != self._count:
            self._count, self._moved = count, self.clock.monotonic()
        is_stuck = self.clock.monotonic() - self._moved > _STANDSTILL
        return bool(self.left) or (count < SUBARRAYS * self._records and not is_stuck)

    def in_words(self) -> str:
        """Say how much is confirmed."""
        return f"{self._count:,} records confirmed"

    def account(self) -> Account:
        """Hold what was confirmed against the topic, the devices and the alarms."""
        confirmed = {number: read_confirmed(self._journal(number)) for number in self._plans}
        told = {
            name: one
            for number, steps in self._plans.items()
            for name, one in newest(number, steps, confirmed[number]).items()
        }
        made, found = Account(), self._found(told)
        begin = self.clock.monotonic()

        def is_right() -> bool:
            nonlocal found
            self.revive()
            found = self._found(told)
            return not differences(found, self._master) and not self._not_zero()

        self.progress.wait_until(is_right, _AGREE_WITHIN, "devices, topic and controllers agree")
        made.wrong += [*differences(found, self._master), *self._not_zero()]
        for number, steps in self._plans.items():
            if len(confirmed[number]) != len(steps):
                made.wrong.append(f"controller {number}: told {len(confirmed[number]):,} of {len(steps):,} records")
        steps = [one for plan_ in self._plans.values() for one in plan_]
        made.rows += [
            ("records confirmed", sum(map(len, confirmed.values()))),
            ("... of them removals", sum(one.state == REMOVED for one in steps)),
            ("... of them failures", sum(one.state == "FAILED" for one in steps)),
            ("blocks compared", len(told)),
            ("devices compared", len(found.shown)),
            (f"alarms {CONDITION}", sum(one["condition"] == CONDITION for one in found.alarms)),
            ("from the end of the run until all agreed", f"{self.clock.monotonic() - begin:.1f} s"),
            ("longest absence of the broker after its kill", f"{self.broker_away:.1f} s"),
        ]
        return made

    def _journal(self, number: int) -> Path:
        return self.deployment.folder / f"confirmed-{number}.txt"

    def _found(self, told: Any) -> Found:
        names = [*ATTRIBUTES.values(), "processingBlocks", "newestFailure"]
        devices = [self._master, *self.deployment.devices("SdpSubarray")]
        return Found(
            told=told,
            topic=self._topic(),
            shown={device: self._read(device, names) for device in devices},
            alarms=self._alarms(),
        )

    def _topic(self) -> dict[str, ProcessingBlock]:
        blocks: dict[str, ProcessingBlock] = {}
        try:
            for record in KafkaBus(self.deployment.connection, client="account").read_all(BLOCKS):
                name = (record.key or b"").decode()
                blocks.pop(name, None)
                if isinstance(block := read_block(record), ProcessingBlock):
                    blocks[name] = block
        except BusError as error:
            self.progress.step(f"  {error}")
        return blocks

    def _alarms(self) -> list[dict[str, Any]]:
        try:
            return list(msgspec.json.decode(self.deployment.proxy(self._alerts).command_inout("GetAlarms")))
        except tango.DevFailed:
            return []

    def _not_zero(self) -> list[str]:
        names = [f"processingBlocks{figure}" for figure in _NOTHING]
        values = self._read(self._bus, names)
        return [f"{name}: expected 0, got {values.get(name)}" for name in names if values.get(name) != 0]

    def _read(self, device: str, names: list[str]) -> dict[str, Any]:
        try:
            return {one.name: one.value for one in self.deployment.proxy(device).read_attributes(names)}
        except tango.DevFailed:
            return {}


def block_faults(
    records: Annotated[int, typer.Option(min=1_000, help="States and removals to publish in all.")] = 60_000,
    kills: Annotated[
        int, typer.Option(min=0, help="kill -9 of each controller, two device servers and the broker.")
    ] = 5,
    seed: Seed = 1,
    quick: Annotated[
        bool, typer.Option("--quick", help=f"Only {_QUICK:,} records, and {_QUICK_KILLS} kill of each part.")
    ] = False,
    folder: Folder = Path(".run"),
) -> None:
    """Publish states of processing blocks while controllers, device servers and broker are killed (kill -9).

    The exit code is 1 when the topic, SdpSubarray, SdpMaster or the alarms do not say exactly what the controllers
    were confirmed to have published.

    Example: sdp-facade block-faults --quick
    """
    records, kills = (_QUICK, _QUICK_KILLS) if quick else (records, kills)
    play(
        lambda deployment: BlockFaultRun(deployment, records=records, kills=kills, seed=seed),
        f"{records:,} records of processing blocks, seed {seed}",
        "topic, devices and alarms have each block in the state that was confirmed last",
        folder,
        "block-faults",
        nodes=1,
        subarrays=SUBARRAYS,
    )
