"""What a bench says: ratios, percentiles, verdicts, and the file that holds them; no measuring here."""

import os
import platform
import re
import statistics
import subprocess
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

VERSION = "bench/1"
MEGA = 1_000_000

_BLOCK = re.compile(r"(<!-- bench ([\w.-]+) -->\n)(.*?)(<!-- /bench -->)", re.DOTALL)
_LIBRARIES = ("sdp-tango-facade", "pytango", "confluent-kafka", "msgspec", "numpy")


class Ratios(msgspec.Struct, frozen=True, kw_only=True):
    """Quotients of figures that were measured in pairs."""

    median: float
    lowest: float
    highest: float
    pairs: int

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.lowest:.2f} to {self.highest:.2f} of {self.pairs} pairs)"


class Quantiles(msgspec.Struct, frozen=True, kw_only=True):
    """A distribution in four figures."""

    p50: float
    p99: float
    highest: float
    count: int

    def text(self, scale: float, unit: str) -> str:
        p50, p99, highest = (f"{value * scale:.4g}" for value in (self.p50, self.p99, self.highest))
        return f"p50 {p50}, p99 {p99}, max {highest} {unit} of {self.count:,}"


class BarVerdict(msgspec.Struct, frozen=True):
    """One figure beside its bar."""

    what: str
    found: str
    bar: str = ""
    """Empty: there is none."""
    reached: bool | None = None
    """None: there is no bar."""

    @property
    def word(self) -> str:
        if self.reached is None:
            return "no bar" if not self.bar else "NOT MEASURED"
        return "REACHED" if self.reached else "NOT REACHED"


class BenchOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one measurement found."""

    name: str = ""
    """Of the measurement, by which the command knows it."""
    what: str
    verdicts: tuple[BarVerdict, ...]
    notes: tuple[str, ...] = ()
    """What else was seen, one sentence each."""
    figures: dict[str, Any] = {}
    """Everything measured, run by run."""
    tables: dict[str, str] = {}
    """In Markdown, by the name of a marked block of a page; see `with_tables`."""
    failure: str = ""
    """Why there is no result; empty: there is one."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Where it was measured."""

    cores: int
    cpu: str
    memory_gb: float
    system: str
    python: str
    load_average: tuple[float, float, float]
    """When the bench began: what else the machine was doing."""
    commit: str
    """Of this project; with `+` after changes that are not committed."""
    versions: dict[str, str]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The whole bench."""

    schema: str = VERSION
    began: float
    """[Unix s]."""
    seconds: float
    quick: bool
    finished: bool
    """False: it was interrupted, or still runs."""
    machine: Machine
    outcomes: tuple[BenchOutcome, ...]


def ratios(pairs: Iterable[tuple[float, float]]) -> Ratios:
    quotients = [first / second for first, second in pairs]
    if not quotients:
        raise ValueError("ratios: expected at least one pair, got none")
    return Ratios(
        median=statistics.median(quotients), lowest=min(quotients), highest=max(quotients), pairs=len(quotients)
    )


def quantiles(values: Sequence[float] | npt.NDArray[np.float64]) -> Quantiles | None:
    """Return the distribution of some values by nearest rank, so that infinite ones stay so; None: no values.

    A nearest rank is a value that occurred; nothing is interpolated.
    """
    array = np.asarray(values, dtype=np.float64)
    if not len(array):
        return None
    p50, p99 = np.quantile(array, [0.5, 0.99], method="inverted_cdf").tolist()
    return Quantiles(p50=p50, p99=p99, highest=float(array.max()), count=len(array))


def flatness(samples: Sequence[float], warm_up: float = 0.1) -> float | None:
    """Return by what fraction the last quarter's median is above the first quarter's.

    Parameters
    ----------
    warm_up
        Fraction of the samples at the beginning that is left out.

    Returns
    -------
    float or None
        None for too few samples to have quarters.
    """
    steady = samples[round(len(samples) * warm_up) :]
    quarter = len(steady) // 4
    if quarter < 1:
        return None
    return statistics.median(steady[-quarter:]) / statistics.median(steady[:quarter]) - 1


def at_least(what: str, found: Ratios, bar: float) -> BarVerdict:
    return BarVerdict(what, str(found), bar=f">= {bar:g}", reached=found.median >= bar)


def at_most(what: str, found: float | None, bar: float, unit: str) -> BarVerdict:
    """Judge a figure that must not be above the bar; None: it could not be measured."""
    text = "-" if found is None else f"{found:.4g} {unit}"
    return BarVerdict(what, text, bar=f"<= {bar:g} {unit}", reached=None if found is None else found <= bar)


def none_of(what: str, count: int, more: str = "") -> BarVerdict:
    """Judge a number that must be 0; `more` is said after it."""
    return BarVerdict(what, f"{count:,}{more}", bar="0", reached=count == 0)


def summary(outcomes: Iterable[BenchOutcome]) -> list[tuple[str, str, str, str, str]]:
    """Return the rows of the closing table: measurement, figure, bar, found, judgement."""
    rows = []
    for outcome in outcomes:
        if outcome.failure:
            rows.append((outcome.name, "", "", outcome.failure, "FAILED"))
        rows += [(outcome.name, v.what, v.bar, v.found, v.word) for v in outcome.verdicts]
    return rows


def machine() -> Machine:
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        cpu=_field("/proc/cpuinfo", "model name"),
        memory_gb=round(int(_field("/proc/meminfo", "MemTotal").split()[0] or 0) / 1e6, 1),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        load_average=os.getloadavg(),
        commit=_commit(),
        versions={name: _version(name) for name in _LIBRARIES},
    )


def with_tables(page: str, report: Report) -> str:
    """Return a page with the measured figures in its blocks.

    A block begins with `<!-- bench NAME -->` and ends with `<!-- /bench -->`. Of a measurement it says how that was
    made; of one of its tables it has this table. Blocks of other measurements stay as they are.
    """
    blocks = {f"{outcome.name}.{name}": table for outcome in report.outcomes for name, table in outcome.tables.items()}
    blocks |= {outcome.name: _how(outcome, report) for outcome in report.outcomes if not outcome.failure}

    def block(found: re.Match[str]) -> str:
        return f"{found[1]}{blocks[found[2]]}\n{found[4]}" if found[2] in blocks else found[0]

    return _BLOCK.sub(block, page)


def _how(outcome: BenchOutcome, report: Report) -> str:
    where, options = report.machine, f"--only {outcome.name}{' --quick' * report.quick}"
    sentence = (
        f"`bench {options}`, commit `{where.commit}`, one run, {datetime.fromtimestamp(report.began, UTC):%Y-%m-%d}:"
        f" {where.cores} cores ({where.cpu}), {where.memory_gb:g} GB,"
        f" load average {where.load_average[0]:.1f} before it."
    )
    return " ".join([sentence, *(f"Failed: {note}." for note in outcome.notes)])


def _commit() -> str:
    argv = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=+", "--exclude=*", "--abbrev=8"]
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _field(file: str, name: str) -> str:
    for line in Path(file).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return "0"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
