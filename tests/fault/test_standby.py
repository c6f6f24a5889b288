"""Two processes that may serve the same subarray: one serves, the other one stands by and takes its place."""

from collections.abc import Callable

import pytest
import tango

from tests.support.deployment import Deployment, subarray_device
from tests.support.processes import Running
from tests.support.waiting import until

pytestmark = [pytest.mark.kafka, pytest.mark.tango]

DEVICE = subarray_device(1)
NEVER = "ObsReset"
"""A command that is not allowed in OFF: what refuses it says whether the server may command."""


def test_a_standby_takes_the_place_of_a_server_that_stops_and_of_one_that_is_killed(
    deploy: Callable[..., Deployment],
) -> None:
    deployment = deploy(subarrays=1)

    def stand_by(name: str) -> Running:
        process = deployment.start(name, ["SdpFacade", "subarray", "--standby"])
        until(lambda: "standing by" in process.text, f"{name} stands by")
        return process

    def commands() -> bool:
        """Return whether a server that the database names may command: it refuses by the state of the subarray."""
        try:
            tango.DeviceProxy(f"tango://{deployment.tango_host}/{DEVICE}").command_inout(NEVER)
        except tango.DevFailed as failed:
            return "expected State ON" in failed.args[0].desc
        return False

    one = stand_by("one")
    until(commands, "the first one serves, as nobody else does")
    two = stand_by("two")
    assert one.terminate() == 0
    until(commands, "the second one serves after the goodbye")
    assert "taking the place" in two.text
    three = stand_by("three")
    two.kill()
    until(commands, "the third one serves after the silence")
    assert three.running
