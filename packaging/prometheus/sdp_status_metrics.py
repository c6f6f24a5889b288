#!/opt/sdp-facade/bin/python
"""Write the health of SDP and its alarms for the textfile collector of node_exporter: sdp_status_metrics.py FOLDER.

`sdp_status` is the exit code of `sdp-facade status`: 0 OK, 1 DEGRADED, 2 FAILED, 3 UNKNOWN.
"""

import json
import subprocess
import sys
from pathlib import Path

from facade.kernel.clock import SystemClock

UNKNOWN = 3
PROGRAM = "sdp-facade"


def ask(*words: str) -> tuple[int, str]:
    """Return the exit code and the output of a command; UNKNOWN if it gives no answer within 50 s."""
    try:
        done = subprocess.run([PROGRAM, *words], capture_output=True, text=True, timeout=50, check=False)
    except (subprocess.TimeoutExpired, OSError):
        return UNKNOWN, ""
    return done.returncode, done.stdout


def escaped(value: str) -> str:
    """Return a label's value as the text format of Prometheus has it, which is not as JSON has it."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def lines() -> list[str]:
    """Return the samples in the text format of Prometheus."""
    found = [f"sdp_status {ask('status')[0]}", f"sdp_status_time_seconds {SystemClock().now():.0f}"]
    code, text = ask("alerts", "list", "--json")
    for alarm in json.loads(text) if code == 0 else ():
        labels = ",".join(f'{name}="{escaped(alarm[name])}"' for name in ("condition", "source", "severity", "state"))
        found.append(f"sdp_alarm{{{labels}}} 1")
    return found


if __name__ == "__main__":
    goal = Path(sys.argv[1]) / "sdp.prom"
    new = goal.with_suffix(".new")  # the collector reads *.prom only, and never a half-written file
    new.write_text("\n".join(lines()) + "\n", encoding="utf-8")
    new.replace(goal)
