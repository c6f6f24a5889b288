"""How topics that exist differ from the ICD is said, one line each, and nothing is made anew."""

import pytest

from facade.bus.kafka import topics
from facade.bus.kafka.connection import Connection
from facade.bus.kafka.inspection import FoundTopic
from facade.config import Settings
from facade.icd.load import load

ICD = load()


def test_each_difference_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        name: FoundTopic(partitions=topic.partitions, settings=topics.broker_settings(topic))
        for name, topic in ICD.topics.items()
    }
    monkeypatch.setattr(topics, "inspect_topics", lambda connection, names: found)
    connection = Connection(Settings(prefix="t.", bootstrap="127.0.0.1:1"))
    assert topics.create_topics(connection, ICD.topics) == []
    wanted = topics.broker_settings(ICD.topics["state"])
    found["state"] = FoundTopic(partitions=99, settings={**wanted, "cleanup.policy": "delete"})
    assert topics.create_topics(connection, ICD.topics) == [
        f"t.state: partitions: ICD says {ICD.topics['state'].partitions}, broker has 99",
        "t.state: cleanup.policy: ICD says compact, broker has delete",
    ]
