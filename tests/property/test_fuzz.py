"""A small fuzz of the whole facade in one process: a record that is wrong anywhere harms nothing; see `make prove`."""

import logging
from collections import Counter
from collections.abc import Iterator

import pytest

from sdp_facade_lab.fault_runs.fuzz_records import (
    GOOD_GROUP,
    GOOD_SUBARRAY,
    INTERNAL,
    LARGEST,
    MARK,
    Numbered,
    numbered,
)
from tests.support.examples import PROFILE
from tests.support.whole import ICD, Site, in_tango

PARTITIONS = {name: topic.partitions for name, topic in ICD.topics.items()}
SEED = 20270115
RECORDS, BATCH = 1500, 50
WINDOWED = ("ingest.heaps", "ingest.buffers", "flagging", "storage")
READ = ("alerts", "quality")
TAKEN = (*WINDOWED, "alert-packets", "calibration", *READ)


def sent(site: Site, seed: int, first: int, count: int, goods: dict[str, int]) -> Iterator[Numbered]:
    """Return records as Kafka takes them: none larger than its topic allows, and each of its key's partition."""
    for number in range(first, first + count):
        made = numbered(seed, number, site.clock.now_us(), PARTITIONS, goods)
        if len(made.record.value or b"") <= min(ICD.topics[made.record.topic].max_bytes, LARGEST // 10):
            yield made


def show_all(site: Site) -> None:
    for device, name, reading in site.left:
        in_tango(site, device, name, reading)
    site.left.clear()


@pytest.mark.parametrize("seed", [SEED])
def test_each_record_is_counted_once_and_harms_no_neighbour(seed, caplog):
    """The reproduction of a finding: `sent(site, seed, number, 1, {})`."""
    site, goods, topics = Site(), Counter(), Counter()
    site.cycle()
    with caplog.at_level(logging.ERROR):
        for first in range(0, RECORDS if PROFILE == "fixed" else 10 * RECORDS, BATCH):
            for one in sent(site, seed, first, BATCH, goods):
                topics[one.record.topic, one.is_good] += 1
                site.send(one.record)
            site.cycle(3)
            show_all(site)
            faults = [record.getMessage() + (record.exc_text or "") for record in caplog.records]
            assert not faults, f"seed {seed}, records {first} to {first + BATCH - 1}: {faults[0]}"
        site.cycle(20)
    letters = site.broker.read("dead-letters")
    internal = [dict(letter.headers) for letter in letters if dict(letter.headers)["dl.reason"] == b"internal"]
    assert not internal
    harmed = [letter for letter in letters if dict(letter.headers).get(MARK)]
    assert not harmed, dict(harmed[0].headers)
    streams = {name: totals for name, totals in site.streams().items() if name in TAKEN}
    for name in TAKEN:
        account = streams[name].account
        taken = site.taken(name) if name in READ else len(site.broker.read(name))  # a server may raise alerts itself
        assert account.consumed == taken >= topics[name, True] + topics[name, False], name
        assert account.consumed == account.used + account.late + account.suppressed + account.dead_lettered, name
        assert account.dead_lettered == sum(dict(one.headers)["dl.topic"] == name.encode() for one in letters), name
        assert account.used >= topics[name, True], name
    assert site.shows("mid-sdp/ingest/0003", "heapsTotal") == topics["ingest.heaps", True]
    assert set(INTERNAL) | set(TAKEN) == {topic for topic, _ in topics}
    assert (GOOD_GROUP, GOOD_SUBARRAY) == (3, 2)
