"""A client of SdpAlerts on real parts: it misses nothing, whatever happens to the device server or to events."""

import sys

import pytest

from tests.conftest import Deploy
from tests.support.alerting import alert
from tests.support.deployment import Deployment
from tests.support.processes import Running
from tests.support.waiting import until

pytestmark = [pytest.mark.kafka, pytest.mark.tango]

FOLLOW = "import typer; from sdp_facade_clients.alert_commands import follow; typer.run(follow)"


class Source:
    """Sends numbered alerts."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self.sent = 0

    def send(self, count: int) -> None:
        begin = self.sent + 1
        self.sent += count
        self._deployment.send(*(alert(number) for number in range(begin, self.sent + 1)))


def printed(client: Running) -> list[int]:
    lines = client.text.splitlines(keepends=True)
    return [int(line.split()[0]) for line in lines if line.endswith("\n") and not line.startswith("following ")]


@pytest.mark.slow
def test_a_client_misses_nothing_through_a_kill_in_the_middle_of_alerts(deploy: Deploy) -> None:
    deployment = deploy()
    server, source = deployment.server("alerts"), Source(deployment)
    # A terminal's width would break lines of a pipe.
    client = deployment.start("follow", [sys.executable, "-c", FOLLOW, "--since", "0"], COLUMNS="200")
    source.send(3000)
    until(lambda: len(printed(client)) > 1000, "the client is in the middle of them")
    server.kill()
    source.send(200)  # while nobody is there
    deployment.server("alerts")
    source.send(1)
    until(lambda: len(printed(client)) >= source.sent, "all are there")
    assert printed(client) == [*range(1, source.sent + 1)]
    assert client.terminate() == 0
