"""A demo as its guard starts it: ``python -m proving.demo GUARD OPTIONS``; the guard's process id, options as JSON."""

import ctypes
import faulthandler
import os
import signal
import sys
from pathlib import Path
from typing import Any, Final

import msgspec

from facade.clock import SystemClock
from facade.runtime.stopping import end_process
from proving.demo.cli import console
from proving.demo.options import DemoOptions
from proving.demo.scenario import play

_PR_SET_PDEATHSIG: Final = 1
"""Linux's prctl: a signal for the time when the parent is gone."""


def main(guard: str, task: str) -> None:
    """Play; if the guard is killed, clear everything away as after a Ctrl-C."""
    faulthandler.enable()
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # it prints from a group of its own
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(guard):
        sys.exit("the guard of the demo was killed before the demo began")
    code = play(msgspec.json.decode(task, type=DemoOptions, dec_hook=_decoded), console(), SystemClock())
    end_process(code)


def _decoded(kind: type[Any], value: Any) -> Any:
    return Path(value) if issubclass(kind, Path) else kind(value)


if __name__ == "__main__":
    main(*sys.argv[1:])
