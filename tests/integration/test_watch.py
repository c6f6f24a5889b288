"""The live view beside a running system whose processes are stopped and killed: old values never look new."""

import signal

import pytest

from tests.conftest import Deploy
from tests.support.processes import Running
from tests.support.waiting import until

pytestmark = [pytest.mark.kafka, pytest.mark.tango]


def newest(view: Running) -> str:
    """Return the last whole line of a view that is no terminal's."""
    lines = [line for line in view.text.splitlines() if " UTC" in line]
    return lines[-1] if lines else ""


def test_each_process_that_is_stopped_or_killed_is_seen(deploy: Deploy) -> None:
    """It showed green rows two minutes after Kafka, the database and all servers had gone."""
    deployment = deploy(nodes=2)
    database = deployment.processes["tango-db"]
    deployment.prepare()
    servers = deployment.serve()
    worker = deployment.worker()
    deployment.simulate("--rate", 200)
    view = deployment.launch("watch", "watch")

    def shows(*texts: str, without: str = "NO ANSWER") -> None:
        until(
            lambda: all(text in newest(view) for text in texts) and without not in newest(view),
            f"the view shows {texts}, without {without!r}",
        )

    shows("nodes 2/2")
    servers["ingest-00"].send(signal.SIGSTOP)
    shows("NO ANSWER from mid-sdp/ingest/0000", without="no such text")
    servers["ingest-00"].send(signal.SIGCONT)
    shows("nodes 2/2")
    worker.send(signal.SIGKILL)
    shows("nodes 0/2")  # nothing is aggregated: the nodes' values are stale
    servers["control"].send(signal.SIGKILL)
    shows("SDP -", "nodes -/-", "- heaps/s", without="no such text")
    database.send(signal.SIGKILL)
    servers["ingest-00"].send(signal.SIGKILL)
    shows("NO ANSWER from mid-sdp/bus/0 and 3 more since", without="no such text")
