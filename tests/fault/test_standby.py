"""Processes that may serve the same devices: one serves, the others stand by and take its place."""

import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest
import tango

from facade.flows.alerts.follower import Page
from tests.support.alerting import alert
from tests.support.deployment import MASTER, Deployment, node_device, subarray_device
from tests.support.processes import Running
from tests.support.waiting import until, until_equal

pytestmark = [pytest.mark.kafka, pytest.mark.tango]

ALERTS = "mid-sdp/alerts/0"
COMMANDS = {"subarray": (subarray_device(1), "ObsReset"), "control": (MASTER, "Off")}
"""Instance to a device, and a command of it."""


def test_a_standby_takes_the_place_of_a_server_that_stops_is_killed_or_stands_still(
    deploy: Callable[..., Deployment],
) -> None:
    deployment = deploy(subarrays=1, without="calibration,quality,mirror,logs,alerts-intake,tables-assemble")

    # The order in which they begin is that of their turns.
    processes = {
        instance: [
            deployment.start(f"{instance}-{number}", ["SdpFacade", instance, "--standby"]) for number in range(3)
        ]
        for instance in (*COMMANDS, "alerts")
    }
    served = dict[str, list[Running]]((instance, []) for instance in processes)

    def proxy(device: str) -> Any:
        return tango.DeviceProxy(f"tango://{deployment.tango_host}/{device}")

    def commands(instance: str) -> bool:
        """Return whether a server that the database names may command: only its state makes it refuse."""
        device, command = COMMANDS[instance]
        try:
            proxy(device).command_inout(command)
        except tango.DevFailed as failed:
            return "not allowed" in failed.args[0].desc
        return True

    sent: list[int] = []

    def shown() -> list[int]:
        """Return what sources have numbered the alerts, in the order of the numbers of SdpAlerts."""
        try:
            page = msgspec.json.decode(proxy(ALERTS).command_inout("GetAlertsSince", 0), type=Page)
        except tango.DevFailed:
            return []
        assert [entry.previous for entry in page.entries] == [0, *(entry.sequence for entry in page.entries[:-1])]
        alerts = (entry.alert or {} for entry in page.entries)
        return [one["sequence"] for one in alerts if one.get("source") == "receive/1"]

    def serve(turns: int, after: str) -> dict[str, Running]:
        """Wait until all instances serve after some turns, and return their servers."""
        sent.append(len(sent) + 1)
        deployment.send(alert(sent[-1]))
        for instance, known in served.items():

            def has_begun(instance: str = instance, known: list[Running] = known) -> bool:
                known += [one for one in processes[instance] if one not in known and "taking the place" in one.text]
                return len(known) >= turns and "bus opened" in known[-1].text

            until(has_begun, f"{instance} has another server after {after}")
        for instance in COMMANDS:
            until(partial(commands, instance), f"{instance} commands after {after}")
        until_equal(shown, sent, f"alerts after {after}")
        return {instance: known[-1] for instance, known in served.items()}

    first = serve(1, "the start")
    for server in first.values():
        server.signal(signal.SIGTERM)
    assert [server.exit_code() for server in first.values()] == [0, 0, 0]
    second = serve(2, "the goodbye")
    second["subarray"].kill()
    second["alerts"].kill()
    second["control"].signal(signal.SIGSTOP)
    third = serve(3, "the silence")
    second["control"].signal(signal.SIGCONT)
    assert second["control"].exit_code() == 1, "it was replaced"
    assert serve(3, "the return of the one that stood still") == third
    assert all(server.running for server in third.values())


def test_of_two_servers_of_one_name_the_one_ends_that_clients_do_not_find(deploy: Callable[..., Deployment]) -> None:
    """They were started without the option: the first one stood still for so long that Tango let a second one start."""
    deployment = deploy(subarrays=1, without="calibration,quality,mirror,logs,alerts-intake,tables-assemble")
    devices = {"alerts": ALERTS, "control": MASTER, "ingest-00": node_device(0)}
    first = {instance: deployment.server(instance, name=f"{instance}-first") for instance in devices}
    for process in first.values():
        until(lambda process=process: "bus opened" in process.text, "it reads the bus")  # type: ignore[misc]
        process.signal(signal.SIGSTOP)
    second = {instance: deployment.server(instance, name=f"{instance}-second", ready=False) for instance in devices}
    for instance, process in second.items():
        deployment.await_server(process, instance)

    first["control"].signal(signal.SIGTERM)  # before it can read that it has a successor
    for process in first.values():
        process.signal(signal.SIGCONT)

    assert {instance: process.exit_code() for instance, process in first.items()} == dict.fromkeys(devices, 1)
    deployment.forget_proxies()
    for instance, device in devices.items():
        assert second[instance].running
        assert deployment.read_one(device, "State") is not None, "its devices are still exported"
