"""The command path in one process, on the simulation's brokers, under one clock that tests move."""

import json
from collections.abc import Sequence
from typing import Any

from facade.flows.commands.composition import CommandsEnd
from facade.flows.commands.gateway import Gateway
from facade.flows.commands.messages import AckMessage, CommandMessage, ack_record, decode_ack, decode_command
from facade.kernel.bus.port import Headers
from facade.kernel.clock import ManualClock
from facade.kernel.config import Settings
from facade.kernel.icd.load import load
from facade.kernel.runtime import composition
from facade.kernel.runtime.composition import Server as Service
from facade.sdp.device_state import SETTINGS, StateMessage, state_record
from facade.sdp.device_state import TOPIC as STATES
from tests.support.heaps import BASE_US
from tests.support.simulated_bus import MemoryBroker, MemoryBus

ICD = load()
SUBARRAY, OTHER = "mid-sdp/subarray/01", "mid-sdp/subarray/02"
CONTROLLER = "controller"


class Sink:
    """Keeps what is shown and pushed."""

    def __init__(self) -> None:
        self.shown: dict[tuple[str, str], Any] = {}
        self.pushed: list[tuple[str, str, Any]] = []

    def show(self, device, attribute, reading):
        self.shown[device, attribute] = reading
        return True

    def show_column(self, column):
        found = zip(column.devices, column.arrays().readings(), strict=True)
        return [reading is not None and self.show(device, column.attribute, reading) for device, reading in found]

    def push(self, device, attribute, reading):
        self.pushed.append((device, attribute, reading))
        return True


class DeviceServers:
    """Device servers on one broker and under one clock; `start` begins their next life, as after a kill."""

    pause = 0.5
    """Time that a cycle takes [s]."""

    def __init__(self, broker: MemoryBroker | None = None, /, **servers: dict[str, list[str]]) -> None:
        self.broker = broker or MemoryBroker(ManualClock(BASE_US / 1e6))
        self.clock = self.broker.clock
        self._wanted = servers
        self.start()

    def start(self) -> None:
        self.sink = Sink()
        self.servers = [self.serve(instance) for instance in self._wanted]
        self.cycle()

    def serve(self, instance: str) -> tuple[Service, Any]:
        """Return a new life of one server, and its reader."""
        self.bus = MemoryBus(self.broker)
        server = composition.Server(
            ICD, Settings(), self._wanted[instance], self.sink, self.bus, instance=instance, clock=self.clock,
            versions={"versionId": "1"},
        )  # fmt: skip
        return server, server.event_loop._open()

    def cycle(self, times: int = 6) -> None:
        for _ in range(times):
            for server, reader in self.servers:
                server.event_loop.cycle(reader)
            self.clock.sleep(self.pause)

    def shows(self, name: str, device: str) -> Any:
        return self.sink.shown[device, name].value


class SteppedServer:
    """One device server with devices of one class, driven step by step."""

    def __init__(
        self, bench: Any, devices: Sequence[str], device_class: str, instance: str, settings: Settings | None = None
    ) -> None:
        self.bench, self._device = bench, devices[0]
        self.bus, self.sink = MemoryBus(bench.broker), Sink()
        self.service: Service = composition.Server(
            ICD, settings or Settings(), {device_class: list(devices)}, self.sink, self.bus, instance=instance,
            clock=bench.clock, versions={"versionId": "1"},
        )  # fmt: skip

    def open(self) -> None:
        self.reader = self.service.event_loop._open()

    def shows(self, attribute: str, device: str = "") -> Any:
        return self.sink.shown[device or self._device, attribute].value


class Server(SteppedServer):
    """A device server with subarrays."""

    def __init__(
        self,
        bench: "Bench",
        devices: Sequence[str] = (SUBARRAY, OTHER),
        instance: str = "SdpFacade-subarray",
        device_class: str = "SdpSubarray",
        settings: Settings | None = None,
    ) -> None:
        super().__init__(bench, devices, device_class, instance, settings)

    @property
    def gateway(self):
        return self.service.find(Gateway)

    @property
    def tracker(self):
        return self.service.find(Gateway).tracker

    def cycle(self, times: int = 3) -> None:
        """Let the event loop read and publish, and the thread beside it ask for the end of `commands`."""
        end = self.service.find(CommandsEnd)
        assert end is not None
        for _ in range(times):
            self.service.event_loop.cycle(self.reader)
            end.step()

    def give(self, name: str, argument: Any = None, device: str = SUBARRAY, headers: Headers = (), **who: str) -> str:
        self.bench.clock.sleep(0.001)
        text = None if argument is None else json.dumps(argument)
        return self.gateway.give(device, name, text, headers, **who)

    def stop(self) -> None:
        for one in self.service.event_loop._periodic_tasks:
            one.end()


class Bench:
    """A broker, a clock, device servers, and a controller that says what the test wants."""

    def __init__(self) -> None:
        self.clock = ManualClock(BASE_US / 1e6)
        self.broker = MemoryBroker(self.clock)

    def server(self, *, ready: bool = True, start: bool = True, **options: Any) -> Server:
        server = Server(self, **options)
        if start:
            server.open()
            server.cycle()
        if ready:
            assert server.gateway.lease.held(self.clock.monotonic())
        return server

    def commands(self) -> list[CommandMessage]:
        return [decode_command(record.value) for record in self.broker.read("commands")]

    def acks(self) -> list[AckMessage]:
        return [decode_ack(record.value) for record in self.broker.read("command-acks")]

    def ack(self, id: str, status: str, *, device: str = SUBARRAY, **more: Any) -> None:
        message = AckMessage(
            id=id,
            device=device,
            command=id.rpartition("_")[2],
            status=status,
            time=self.clock.now_us(),
            origin=CONTROLLER,
            **more,
        )
        self.broker.append(ack_record(message))

    def report(self, *, device: str = SUBARRAY, command: str = "", **values: str) -> None:
        self.clock.sleep(0.001)
        for attribute, value in values.items():
            now_us = self.clock.now_us()
            message = StateMessage(
                device=device, attribute=attribute, value=value, time=now_us, origin=CONTROLLER, command=command
            )
            self.broker.append(state_record(message, SETTINGS if attribute == "adminMode" else STATES))
