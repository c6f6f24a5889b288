"""The whole way of a solution: cut, assembled in memory or on disk, looked into, and folded as a device server does."""

import pytest

from facade.flows.tables.content import ARROW, JSON, encode, encode_pointing, summarise
from facade.flows.tables.flow import TablesFlow
from facade.flows.tables.producer import TableProducer
from facade.flows.tables.simulator.solutions import PointingSeries, SolutionScenario, SolutionSeries
from facade.flows.tables.summaries import Summaries
from facade.outcome import TOMBSTONE, USED
from facade.simulate.array import antenna_names
from tests.support.tables import ICD, Desk


@pytest.mark.parametrize("memory", [0, 10**7])
def test_devices_get_the_summary_of_what_was_sent(memory):
    with Desk(memory=memory) as bench:
        bench.worker._summaries = Summaries(summarise, 1_000_000)
        tables = TableProducer(bench.bus.writer(), bench.broker.clock, icd=ICD)
        solution = SolutionSeries(SolutionScenario(seed=1, antennas=4, channels=50)).next(10**15)
        content = encode(solution)
        for segment in (10**6, len(content) // 3):
            tables.send("subarray/01/gains", "gains", content, ARROW, table=f"in-{segment}", segment=segment)
        offsets = PointingSeries(antenna_names(3)).next()
        tables.send("subarray/01/pointing", "pointing", encode_pointing(offsets), JSON, table="offsets", segment=50)
        tables.send("subarray/01/sky", "sky-model", b"anything", "text/plain", table="sky")
        tables.send("subarray/01/bad", "gains", content[:-100], ARROW, table="bad", segment=1000)
        bench.work(60)
        flow = TablesFlow()
        fates = {flow.fold(record, count=True) for record in bench.broker.read("tables")}
    assert fates <= {USED, TOMBSTONE}
    assert flow.assembling == {}
    assert flow.complete.keys() == {"subarray/01/gains", "subarray/01/pointing", "subarray/01/sky"}
    gains = flow.complete["subarray/01/gains"]
    assert gains.table.table == f"in-{len(content) // 3}"
    assert gains.summary.solution_id == solution.solution_id
    assert gains.summary.antennas == list(solution.antennas)
    assert "note" in flow.complete["subarray/01/sky"].summary
    assert flow.failed["subarray/01/bad"].reason.startswith("content: ")
    assert bench.reasons() == ["content"]
    assert (bench.pool.in_memory, bench.pool.on_disk) == (0, 0)
