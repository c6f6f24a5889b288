"""How a command is told to end: a second SIGTERM does not end what the first one has begun."""

import os
import signal
import subprocess
import sys

import pytest

from facade.runtime.stopping import terminable


def test_sigterm_ends_a_command_once() -> None:
    """A guard that is killed has several threads: the kernel sends the signal of its death for each of them."""
    before = signal.getsignal(signal.SIGTERM)
    cleared_away = False
    with terminable():
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        cleared_away = True
    assert cleared_away
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_process_ends_at_once_with_its_code_and_all_its_words() -> None:
    """A Tango event that came while Python was taken down ended a run, which had passed, with SIGSEGV."""
    code = (
        "import atexit\n"
        "from facade.runtime.stopping import end_process\n"
        "atexit.register(print, 'taken down')\n"
        "print('said', end='')\n"
        "end_process(3)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "said", "")
