"""The settings of the assembling worker."""

import pytest

from facade.kernel.config import load_settings
from facade.kernel.errors import ConfigError


def test_the_environment_sets_them():
    settings = load_settings({"SDP_TABLE_ROOTS": "/a:/b", "SDP_TABLE_MEMORY": "5", "SDP_TABLE_EXPIRY": "1.5"})
    assert (settings.table_roots, settings.table_memory, settings.table_expiry) == ("/a:/b", 5, 1.5)
    assert settings.table_disk == 20_000_000_000


@pytest.mark.parametrize("name", ["SDP_TABLE_MEMORY", "SDP_TABLE_DISK", "SDP_TABLE_EXPIRY"])
@pytest.mark.parametrize("value", ["-1", "much"])
def test_nonsense_is_refused(name, value):
    with pytest.raises(ConfigError, match=name.removeprefix("SDP_").lower() if value == "-1" else name):
        load_settings({name: value})
