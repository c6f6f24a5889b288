"""Changes the pure parts of the flows, one place at a time, and runs the tests that need no broker: do they notice?

The library is mutmut; what it changes and which tests it runs stands in ``pyproject.toml`` under ``tool.mutmut``.
``tests/mutation.toml`` names changes that make no difference, each with the line that it makes and the reason. The exit
code is 1 if fewer than 95 % of the others were found.
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_MUTANTS = _ROOT / "mutants"
_WANTED = 0.95
_FAILED = {1, 3}
"""Exit codes of mutmut: a test failed."""
_TIMED_OUT = {24, 36, 152, 255, -24}
"""The tests did not end; on a busy machine that is repeated alone before it counts."""
_KILLED = _FAILED | _TIMED_OUT


def _results() -> dict[str, int | None]:
    found: dict[str, int | None] = {}
    for path in sorted(_MUTANTS.rglob("*.meta")):
        found |= json.loads(path.read_text()).get("exit_code_by_key", {})
    return found


def _mutmut(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mutmut", *arguments]
    return subprocess.run(command, cwd=_ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)


def _require_lines(equivalent: Mapping[str, Mapping[str, str]]) -> None:
    """End the process if a change is not the one any more that was found to make no difference: names are numbers."""
    for name, about in equivalent.items():
        shown = _mutmut("show", name).stdout
        if about["line"] not in (line[1:].strip() for line in shown.splitlines() if line.startswith("+")):
            sys.exit(
                f"tests/mutation.toml: {name}: expected a change that makes the line {about['line']!r}, got\n{shown}"
            )


def main() -> int:
    """Run a sample; return the exit code of the process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, default=0, help="this many changes only, drawn by the seed; 0: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    equivalent = tomllib.loads((_ROOT / "tests" / "mutation.toml").read_text())["equivalent"]
    shutil.rmtree(_MUTANTS, ignore_errors=True)  # what an older sample has found is of older code
    _mutmut("run", "no such change")  # makes the changed code
    _require_lines(equivalent)
    names = sorted(_results())
    if given.sample:
        names = sorted(random.Random(given.seed).sample(names, min(given.sample, len(names))))
    print(f"{len(names)} changes, seed {given.seed}", flush=True)
    started = time.monotonic()
    for begin in range(0, len(names), 40):
        batch = names[begin : begin + 40]
        said = _mutmut("run", "--max-children", str(given.processes), *batch)
        results = _results()
        if all(results[name] is None for name in batch):
            sys.exit(f"mutmut gave no result:\n{said.stdout[-2000:]}")
        found = sum(results[name] in _KILLED for name in names if results[name] is not None)
        tried = min(begin + 40, len(names))
        print(f"{tried} of {len(names)} tried in {time.monotonic() - started:.0f} s, {found} found", flush=True)
    late = [name for name in names if results[name] in _TIMED_OUT]
    for name in late:
        _mutmut("run", "--max-children", "1", name)
    results = _results()
    timed_out = sum(results[name] in _TIMED_OUT for name in names)
    survivors = [name for name in names if results[name] not in _KILLED and name not in equivalent]
    for name in survivors:
        print(f"\nnot found (exit code {results[name]}): {name}\n{_mutmut('show', name).stdout}")
    counted = len(names) - sum(name in equivalent for name in names)
    print(
        f"\n{counted - len(survivors)} of {counted} found, {timed_out} of them as tests did not end ({len(late)} were"
        f" repeated alone); {len(names) - counted} make no difference"
    )
    return 0 if counted - len(survivors) >= _WANTED * counted else 1


if __name__ == "__main__":
    sys.exit(main())
