"""The price of three secured brokers: a worker, and commands and alerts in quiet and beside notifications.

All four brokers run all the time, on the same cores and with the same options of Java. Those of the side that is not
measured are idle. Each side is measured in turn, with all that a deployment needs; each second time in the other order.
"""

import itertools
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Final, TypeVar

from facade.admin import access, rights
from facade.admin.quotas import name_of
from sdp_facade_lab import testbed as beds
from sdp_facade_lab.bench.hops import WARM_UP, Measured, beside_load, commands_and_alerts
from sdp_facade_lab.bench.load import fill_topic
from sdp_facade_lab.bench.report import MEGA, BarVerdict, BenchOutcome, machine, quantiles, ratios
from sdp_facade_lab.bench.throughput import run_worker
from sdp_facade_lab.bench.throughput_roles import RoleTiming
from sdp_facade_lab.deployment import Deployment
from sdp_facade_lab.testbed import Testbed

SECURED, OPEN = "three secured brokers", "one open broker"
SHARED: Final = (
    "three brokers (TLS, SCRAM, rights; three replicas, two in sync), one open broker and all clients share {} cores;"
    " with a machine for each broker, the replicas would cost less"
)
_LOADED: Final = "beside load"
_ROLE: Final = "aggregate"

_Side = TypeVar("_Side")
Pairs = Sequence[tuple[RoleTiming, RoleTiming]]
SecuredRound = Mapping[str, Measured]
"""Samples by side and measured path."""


def secured(testbed: Testbed, *, quick: bool) -> BenchOutcome:
    records, runs, rounds, warm_up = (500_000, 2, 1, WARM_UP // 20) if quick else (4_000_000, 3, 3, WARM_UP // 4)
    with beds.testbed(testbed.folder / "secured", testbed.progress, brokers=3, secure=True) as three:
        sides = {SECURED: three, OPEN: testbed}
        verdicts = worker_verdicts(_workers(sides, records, runs))
        found: list[SecuredRound] = []
        rates: list[str] = []
        for number in range(rounds):
            made = {}
            for side, bed in _in_turn(sides, number):
                with commands_and_alerts(bed, f"secured-{number}", quick=quick) as (system, measure):
                    quiet = measure(side, warm_up)
                    loaded, rate = beside_load(system, measure, side)
                    made[side] = {**quiet, **{f"{kind} {_LOADED}": samples for kind, samples in loaded.items()}}
                    rates.append(f"{rate:,.0f}/s to {side}")
            found.append(made)
    return BenchOutcome(
        what=f"{SECURED} beside {OPEN}",
        verdicts=(*verdicts, *hop_verdicts(found)),
        notes=(SHARED.format(machine().cores), f"notifications sent {_LOADED}: {', '.join(rates)}"),
        figures={"rounds": found},
    )


def _workers(sides: Mapping[str, Testbed], records: int, runs: int) -> list[tuple[RoleTiming, RoleTiming]]:
    """Time a worker on both sides, with the same records as JSON; the first pair is a warm-up."""
    numbers = itertools.count()
    with ExitStack() as stack:
        made = {side: stack.enter_context(bed.deployment("secured-worker")) for side, bed in sides.items()}
        for deployment in made.values():
            _grant(deployment)
            fill_topic(deployment, records)

        def timed(deployment: Deployment) -> RoleTiming:
            return run_worker(deployment, records, login=_ROLE, group=f"{_ROLE}-{next(numbers)}")

        found = [{side: timed(one) for side, one in _in_turn(made, number)} for number in range(1 + runs)]
    return [(one[SECURED], one[OPEN]) for one in found[1:]]


def _in_turn(sides: Mapping[str, _Side], number: int) -> Sequence[tuple[str, _Side]]:
    """Return the sides, each second time in the other order: the first measurement has a colder machine."""
    return [*sides.items()][:: -1 if number % 2 else 1]


def _grant(deployment: Deployment) -> None:
    """Let the worker have a group of its own for each run."""
    if deployment.endpoints.security is not None:
        groups = f"{deployment.settings.prefix}{_ROLE}-"
        access.create_acls(deployment.connection, [rights.Acl(name_of(_ROLE), "Read", "group", groups, prefixed=True)])


def worker_verdicts(pairs: Pairs) -> list[BarVerdict]:
    secured, open_ = (statistics.median(pair[side].rate for pair in pairs) / MEGA for side in (0, 1))
    rate = ratios((one.rate, other.rate) for one, other in pairs)
    used = ratios((one.cpu_per_million, other.cpu_per_million) for one, other in pairs)
    return [
        BarVerdict("worker, JSON: rate", f"{rate}: {secured:.3g} M/s beside {open_:.3g} M/s"),
        BarVerdict("worker, JSON: its processor time for a record", str(used)),
    ]


def hop_verdicts(rounds: Sequence[SecuredRound]) -> list[BarVerdict]:
    verdicts = []
    for name in rounds[0][SECURED]:
        times = {side: [quantiles([s.whole for s in one[side][name]]) for one in rounds] for side in (SECURED, OPEN)}
        for quantile in ("p50", "p99"):
            each = {side: [getattr(one, quantile) for one in found] for side, found in times.items()}
            ratio = ratios(zip(each[SECURED], each[OPEN], strict=True))
            secured, open_ = (statistics.median(each[side]) * 1e3 for side in (SECURED, OPEN))
            text = f"{ratio if ratio.pairs > 1 else f'{ratio.median:.2f}'}: {secured:.1f} ms beside {open_:.1f} ms"
            verdicts.append(BarVerdict(f"{name}: {quantile}", text))
    return verdicts
