"""Any interleaving, duplication, disorder and death of the worker: each table is announced once, byte for byte."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from facade.kernel.bus.port import Aborted, Record
from tests.support.examples import examples
from tests.support.tables import Desk, cut

PRODUCTS = ("p", "q", "t")
"""p and t are on one partition."""


@st.composite
def streams(draw):
    """Return tables by id, and records of theirs and of nobody's in an order that may be any."""
    tables, records = {}, []
    for number in range(draw(st.integers(1, 4))):
        name = f"t{number}"
        content = draw(st.binary(max_size=60))
        tables[name] = content
        parts = cut(name, content, draw(st.integers(1, 30)), product=draw(st.sampled_from(PRODUCTS)))
        records += parts + draw(st.lists(st.sampled_from(parts), max_size=3))
    bad = Record(topic="calibration", key=b"p", value=b"junk")
    records += [bad] * draw(st.integers(0, 2)) + [replace(bad, value=None)] * draw(st.integers(0, 1))
    if draw(st.booleans()):
        records = draw(st.permutations(records))
    return tables, records


def check(bench: Desk, tables: dict[str, bytes], sent: int) -> None:
    complete = bench.said("COMPLETE")
    assert sorted(one["table"] for one in complete) == sorted(tables)
    for one in complete:
        segments = [
            record
            for record in bench.broker.read("calibration")
            if record.partition == one["partition"] and one["first_offset"] <= record.offset <= one["last_offset"]
        ]
        assert segments
        assert one["summary"] == {"hex": tables[one["table"]].hex()}
    newest = bench.newest()
    assert not [key for key in newest if b"!" in key], "something is left as under way"
    for product in PRODUCTS:
        mine = [one for one in complete if one["product"] == product]
        if mine:
            assert newest[product.encode()] == max(mine, key=lambda one: one["last_offset"])
    for partition in range(4):
        assert bench.committed(partition) == len(bench.broker.logs.get(("calibration", partition), ()))
    assert (bench.pool.in_memory, bench.pool.on_disk) == (0, 0)


class Died(Exception):
    """The process has ended, here and now."""


@settings(max_examples=examples(300))
@given(stream=streams(), batch=st.integers(1, 8), memory=st.sampled_from([0, 40, 10**6]), data=st.data())
def test_each_table_is_announced_once_whatever_happens_around_it(stream, batch, memory, data):
    tables, records = stream
    with Desk(batch=batch, memory=memory) as bench:
        bench.verdict = lambda content: {"hex": content.hex()}
        for record in records:
            bench.send(record)
            what = data.draw(st.sampled_from(["wait", "step", "step", "die", "move"]))
            if what == "step":
                bench.work(1)
            elif what == "die":
                bench.start()
            elif what == "move":
                bench.member.assign(data.draw(st.sets(st.integers(0, 3))))
                bench.work(1)
                bench.member.assign(range(4))
        bench.work(3 * len(records) + 10)
        check(bench, tables, len(records))
        bad = sum(record.value == b"junk" and not record.headers for record in records)
        found = bench.totals()
        assert found["consumed"] == len(records)
        assert found["dead_lettered"] == bad == len(bench.letters())
        assert found["suppressed"] == len(records) - bad - found["used"]
        folded = bench.folded()
        assert (folded.consumed, folded.overlap, folded.skipped) == (len(records), 0, 0)


@settings(max_examples=examples(300))
@given(stream=streams(), batch=st.integers(1, 8), compacts=st.booleans(), data=st.data())
def test_a_worker_that_dies_around_a_write_announces_nothing_twice(stream, batch, compacts, data):
    """Before each transaction, and right after it; nothing is lost either."""
    tables, records = stream
    with Desk(batch=batch) as bench:
        bench.verdict = lambda content: {"hex": content.hex()}
        append, read_all = bench.broker.append, bench.bus.read_all
        if compacts:
            bench.bus.read_all = lambda topic, **how: [*{one.key: one for one in read_all(topic, **how)}.values()]

        def write(written, offsets):
            dies = data.draw(st.sampled_from(("before", "after", "", "")))
            if dies == "before":
                raise Died
            type(bench.member).write(bench.member, written, offsets)
            if dies == "after":
                raise Died

        def work(steps):
            for _ in range(steps):
                try:
                    bench.member.write = write
                    bench.worker.step()
                except Died:
                    bench.start()

        for record in records:
            append(record)
            work(1)
        bench.start()
        bench.work(3 * len(records) + 10)
        check(bench, tables, len(records))
        bad = sum(record.value == b"junk" and not record.headers for record in records)
        assert len({(letter["partition"], letter["offset"]) for letter in bench.letters()}) == bad
        folded = bench.folded()
        assert folded.consumed == len(records) or folded.overlap or folded.skipped, "a deviation that nobody names"


@settings(max_examples=examples(300))
@given(stream=streams(), batch=st.integers(1, 8), memory=st.sampled_from([0, 40, 10**6]), data=st.data())
def test_transactions_that_fail_read_nothing_again_and_are_exact(stream, batch, memory, data):
    """A failed transaction has happened, or has not; the worker lives, and may lose its partitions meanwhile."""
    tables, records = stream
    with Desk(batch=batch, memory=memory) as bench:
        bench.verdict = lambda content: {"hex": content.hex()}

        def write(written, offsets):
            fails = data.draw(st.sampled_from(("before", "after", "", "")))
            if fails != "before":
                type(bench.member).write(bench.member, written, offsets)
            if fails:
                raise Aborted(f"failed {fails} its end")

        bench.member.write = write
        for record in records:
            bench.send(record)
            if data.draw(st.integers(0, 9)) == 0:
                bench.member.assign(data.draw(st.sets(st.integers(0, 3))))
                bench.work(1)
                bench.member.assign(range(4))
            bench.work(data.draw(st.integers(0, 2)))
        del bench.member.write
        bench.work(3 * len(records) + 10)
        check(bench, tables, len(records))
        bad = sum(record.value == b"junk" and not record.headers for record in records)
        assert len(bench.letters()) == bad
        folded = bench.folded()
        assert (folded.consumed, folded.overlap, folded.skipped) == (len(records), 0, 0)


@pytest.mark.parametrize("died_at", range(1, 30))
def test_versions_of_one_product_keep_their_order_through_a_death(died_at):
    with Desk(batch=2) as bench:
        bench.verdict = lambda content: {"hex": content.hex()}
        tables = {f"v{n}": bytes([n]) * 40 for n in range(7)}
        cuts = [cut(name, content, 10) for name, content in tables.items()]
        records = [cuts[0][0], *(record for each in cuts[1:] for record in each), *cuts[0][1:]]
        for number, record in enumerate(records, 1):
            bench.send(record)
            bench.work(1)
            if number == died_at:
                bench.start()
        bench.work(len(records))
        check(bench, tables, len(records))
