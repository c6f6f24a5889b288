"""What tests write into a Tango database is what `register` writes."""

from typing import Any

import pytest

from clients.events import open_database
from devices.registration import register
from tests.conftest import Deploy
from tests.support.deployment import ICD

pytestmark = [pytest.mark.kafka, pytest.mark.tango]


def written(tango_host: str) -> dict[str, Any]:
    """Return what the database says of our servers and classes."""
    database = open_database(tango_host)
    servers = {name: list(database.get_device_class_list(name)) for name in database.get_server_list("SdpFacade/*")}
    about = {name: database.get_class_property(name, ["ProjectTitle", "Description"]) for name in ICD.classes}
    return servers | {name: {key: list(value) for key, value in found.items()} for name, found in about.items()}


def test_devices_of_tests_are_registered_as_those_of_users(deploy: Deploy) -> None:
    deployment = deploy(nodes=60, subarrays=3)
    of_users = deployment.database("of-users")
    assert register(ICD, deployment.settings, of_users) > 60
    expected = written(of_users)
    assert expected.keys() > ICD.classes.keys()
    assert expected["SdpAlerts"]["ProjectTitle"]
    assert written(deployment.tango_host) == expected
