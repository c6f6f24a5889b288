"""The whole path on the Tango database of the C++ kind, with MariaDB behind it."""

import shutil
from pathlib import Path

import pytest

from facade.infra import local
from facade.infra.local import Options, TangoDb
from tests.support.deployment import BUS, MASTER, Deployment, expected_totals, node_device
from tests.support.events import Subscriber
from tests.support.waiting import until_equal

pytestmark = [pytest.mark.kafka, pytest.mark.tango]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("apt-get") is None, reason="the MariaDB variant unpacks Debian packages")
def test_the_path_on_mariadb(tmp_path: Path) -> None:
    """Registration, device servers, events and totals are the same on DataBaseds and MariaDB, also over a kill -9."""
    state_dir = tmp_path / "infra"
    try:
        infra = local.up(Options(state_dir=state_dir, tango_db=TangoDb.MARIADB))
        with Deployment(infra, tmp_path, nodes=2, tango_host=infra.tango_host) as deployment:
            deployment.prepare()
            deployment.register()  # a second time changes nothing
            deployment.worker()
            servers = deployment.serve()
            subscriber = Subscriber(deployment, [MASTER, BUS, node_device(0), node_device(1)])
            report = deployment.simulate("--rate", 1000, "--seconds", 4, "--gaps", 0.01).finish()
            until_equal(deployment.totals, expected_totals(report), "totals are what was sent")
            for kind in ("change", "archive"):
                until_equal(
                    lambda kind=kind: subscriber.value(MASTER, "heapsTotal", kind),
                    report.expected.used,
                    f"the total as {kind} event",
                )
            assert not [event.error for event in subscriber.events() if event.error]
            servers["control"].kill()
            deployment.forget_proxies()
            deployment.server("control")
            until_equal(deployment.totals, expected_totals(report), "totals are back")
    finally:
        local.down(state_dir, wipe=True)
