"""A client of SdpAlerts on real parts: it misses nothing, whatever happens to the device server or to events."""

import sys
from collections.abc import Callable

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from facade.flows.alerts.messages import Alert, alert_record
from tests.conftest import Deploy
from tests.support.deployment import Deployment
from tests.support.processes import Running
from tests.support.topics import send
from tests.support.waiting import until

pytestmark = [pytest.mark.kafka, pytest.mark.tango]

FOLLOW = "import typer; from clients.alert_follow import follow; typer.run(follow)"


class Source:
    """Sends numbered alerts."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self.sent = 0

    def send(self, count: int, text: str = "no.") -> None:
        begin = self.sent + 1
        self.sent += count
        records = [
            alert_record(
                Alert(
                    condition="receiveOverrun",
                    source="receive/1",
                    severity="ALARM",
                    state="ACTIVE",
                    text=f"{text} {number}",
                    raised_at=1_800_000_000_000_000,
                    sequence=number,
                )
            )
            for number in range(begin, self.sent + 1)
        ]
        pairs = [(record.key, record.value) for record in records]
        send(self._deployment.bootstrap, self._deployment.topic("alerts"), pairs)


@pytest.fixture
def deployment(deploy: Deploy) -> Deployment:
    return deploy()


@pytest.fixture
def follow(deployment: Deployment) -> Callable[..., Running]:
    """Return what starts a client process; its output is one line for each alert."""

    def start(*options: str, name: str = "follow") -> Running:
        # A terminal's width would break lines of a pipe.
        return deployment.start(name, [sys.executable, "-c", FOLLOW, *options], COLUMNS="200")

    return start


def printed(client: Running) -> list[int]:
    lines = client.text.splitlines(keepends=True)
    return [int(line.split()[0]) for line in lines if line.endswith("\n") and not line.startswith("following ")]


@pytest.mark.slow
def test_a_client_misses_nothing_through_a_kill_in_the_middle_of_alerts(deployment, follow):
    server, source = deployment.server("alerts"), Source(deployment)
    client = follow("--since", "0")
    source.send(500)
    until(lambda: len(printed(client)) >= 500, "the first alerts")
    for _ in range(2):
        source.send(3000)
        until(lambda: len(printed(client)) > source.sent - 2000, "the client is in the middle of them")
        server.kill()
        source.send(200)  # while nobody is there
        server = deployment.server("alerts")
        source.send(1)
        until(lambda: len(printed(client)) >= source.sent, "all are there")
    assert printed(client) == [*range(1, source.sent + 1)]
    assert client.terminate() == 0


@pytest.mark.slow
def test_a_client_that_wants_only_what_is_new_gets_only_that_and_waits_for_a_server_that_is_not_there(
    deployment, follow
):
    source = Source(deployment)
    source.send(10)
    client = follow()
    server = deployment.server("alerts")
    client.says("after number 10; Ctrl-C ends it")
    source.send(3)
    until(lambda: len(printed(client)) >= 3, "the newest alerts")
    assert printed(client) == [11, 12, 13]
    assert client.terminate() == 0
    assert server.terminate() == 0


@pytest.mark.slow
def test_what_the_device_has_no_more_is_reported(deployment, follow):
    source = Source(deployment)
    source.send(1000)
    topic = TopicPartition(deployment.topic("alerts"), 0, 500)
    admin = AdminClient({"bootstrap.servers": deployment.bootstrap})
    admin.delete_records([topic])[topic].result(20.0)  # as retention would
    server = deployment.server("alerts")
    client = follow("--since", "3", "--most", "5")
    assert client.exit_code() == 1
    assert "lost: 4 to 500 are no longer in the memory of the device" in client.text
    lines = [line for line in client.text.splitlines() if "receiveOverrun" in line]
    assert [int(line.split()[0]) for line in lines] == [*range(501, 506)]
    assert server.running
