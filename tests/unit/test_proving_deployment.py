"""What a deployment on which measurements play has."""

from types import SimpleNamespace

import pytest

from facade.config import Settings
from facade.icd.load import load
from proving.deployment import Deployment


@pytest.mark.parametrize("without", ["", "mirror", "mirror,alerts"])
def test_it_has_the_devices_of_the_roles_that_are_run(without: str) -> None:
    """A bench that read all devices failed at those whose server it does not start."""
    made = SimpleNamespace(icd=load(), settings=Settings(without=without))
    found = {name.split("/")[1] for name in Deployment.devices(made)}  # type: ignore[arg-type]
    assert {"control", "ingest"} <= found
    assert found.isdisjoint(made.settings.left_out)
    assert ("mirror" in found) is ("mirror" not in without)
