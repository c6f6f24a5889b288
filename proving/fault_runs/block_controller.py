"""A controller of the fault run of processing blocks: tells state after state, and writes down what was confirmed."""

from pathlib import Path

from facade.bus.kafka.bus import KafkaBus
from facade.bus.kafka.connection import Connection
from facade.clock import Clock
from facade.errors import BusError
from facade.flows.blocks.source import BlockSource
from proving.fault_runs.block_scenario import REMOVED, Step, plan
from proving.roles import RoleContext

_LINE = len(f"{0:016d} {0:016d}\n")
_SEND_WITHIN = 5.0
_PAUSE = 0.2


def count_confirmed(journal: Path) -> int:
    """Return how many records the bus has confirmed."""
    return journal.stat().st_size // _LINE if journal.exists() else 0


def read_confirmed(journal: Path) -> list[tuple[int, int]]:
    """Return sequence and time [Unix us] of each record that the bus has confirmed, in order; 0, 0 of a removal."""
    lines = journal.read_text().splitlines() if journal.exists() else []
    return [(int(line[:16]), int(line[17:])) for line in lines]


def tell_blocks(context: RoleContext, *, journal: str, subarray: int, seed: int, records: int, interval: float) -> None:
    """Go on after what was confirmed in an earlier life; what was not is told again.

    Parameters
    ----------
    interval
        Shortest time between two records [s].
    """
    file, clock = Path(journal), context.clock
    name = f"controller-{subarray}"
    writer = KafkaBus(Connection(context.settings, clock=clock), client=name).writer()
    blocks = BlockSource(name, lambda record: writer.send_durably(record, _SEND_WITHIN), clock)
    begin = clock.monotonic()
    with file.open("a") as lines:
        for number, step in enumerate(plan(seed, subarray, records)[count_confirmed(file) :]):
            clock.sleep(max(0.0, begin + number * interval - clock.monotonic()))
            sequence, time = _until_confirmed(blocks, subarray, step, clock)
            lines.write(f"{sequence:016d} {time:016d}\n")
            lines.flush()
    # It lives on, so that it can be killed although it has nothing more to tell.
    while not context.called_off:
        clock.sleep(_PAUSE)


def _tell(blocks: BlockSource, subarray: int, step: Step) -> tuple[int, int]:
    if step.state == REMOVED:
        blocks.remove(step.pb_id)
        return 0, 0
    why = {"text": "made to fail"} if step.state == "FAILED" else {}
    told = blocks.tell(step.pb_id, step.eb_id, subarray, "batch", step.state, **why)
    return told.sequence, told.time


def _until_confirmed(blocks: BlockSource, subarray: int, step: Step, clock: Clock) -> tuple[int, int]:
    """Tell again and again until the bus has confirmed it."""
    while True:
        try:
            return _tell(blocks, subarray, step)
        except BusError:
            clock.sleep(_PAUSE)
