"""Client quotas that follow from the classes of the topics."""

import pytest

from facade.admin import quotas
from facade.kernel.errors import ConfigError
from facade.kernel.icd.load import load
from facade.tools.quotas import _rates

ICD = load()


def test_who_writes_logs_only_has_a_quota_and_who_writes_alerts_or_commands_never():
    assert quotas.planned(ICD) == {"sdp-shipper": ICD.quotas["log"]}
    everything = dict.fromkeys(("log", "bulk", "telemetry"), 7)
    found = quotas.planned(ICD, everything)
    assert {"sdp-shipper", "sdp-ingest-node", "sdp-calibration-pipeline"} <= found.keys()
    critical = {role for one in ICD.topics.values() if one.qos in ("alert", "command", "state") for role in one.writers}
    assert critical
    assert not {quotas.name_of(role) for role in critical} & found.keys()


def test_what_kafka_s_tool_tells_is_compared():
    output = """Quota configs for client-id 'sdp-shipper' are producer_byte_rate=2.0E7
Quota configs for client-id 'other' are consumer_byte_rate=5.0
Quota configs for user-principal 'sdp-alerts' are producer_byte_rate=100.0, consumer_byte_rate=5.0
"""
    found = quotas.rates_in(output)
    assert found == {"sdp-shipper": 20_000_000, "sdp-alerts": 100}
    assert [*quotas.differing({"sdp-shipper": 20_000_000}, found, ["sdp-control"])] == []
    texts = [*quotas.differing({"sdp-shipper": 5, "sdp-new": 6}, found, ["sdp-alerts"])]
    assert [text.partition(":")[0] for text in texts] == ["sdp-shipper", "sdp-new", "sdp-alerts"]


@pytest.mark.parametrize("text", ["log", "log=", "log=0", "log=-1", "log=1.5", "loud=5", ""])
def test_a_rate_that_is_none_is_refused(text):
    with pytest.raises(ConfigError, match="expected CLASS=BYTES"):
        _rates([text])
