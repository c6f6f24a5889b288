"""How a command is told to end: a second SIGTERM does not end what the first one has begun."""

import os
import signal
import subprocess
import sys

import pytest

from facade.kernel.runtime.stopping import on_stop, terminable
from facade.kernel.runtime.worker_process import free_slot


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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_program_that_runs_until_it_is_stopped_hears_each_signal(number: signal.Signals) -> None:
    """A simulator flushes at the first one, and ends at the second one."""
    before, heard = signal.getsignal(number), []
    with on_stop(lambda: heard.append(number)):
        for _ in range(2):
            os.kill(os.getpid(), number)
    assert heard == [number, number]
    assert signal.getsignal(number) is before


def test_a_process_ends_at_once_with_its_code_and_all_its_words() -> None:
    """A Tango event that came while Python was taken down ended a run, which had passed, with SIGSEGV."""
    code = (
        "import atexit\n"
        "from facade.kernel.runtime.stopping import end_process\n"
        "atexit.register(print, 'taken down')\n"
        "print('said', end='')\n"
        "end_process(3)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "said", "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a disk that is always full")
def test_a_process_ends_at_once_though_nobody_takes_its_words() -> None:
    """Its output is on a full disk: then Python took itself down, in which a client of Kafka may wait without end."""
    code = (
        "import atexit, sys\n"
        "from facade.kernel.runtime.stopping import end_process\n"
        "atexit.register(print, 'taken down', file=sys.stderr)\n"
        "print('said', end='')\n"
        "end_process()\n"
    )
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True, env=buffered
        )
    assert (ended.returncode, ended.stderr) == (1, "output was lost: [Errno 28] No space left on device\n")


@pytest.mark.parametrize(
    ("taken", "free"),
    [((), "0"), (("aggregate-0",), "1"), (("aggregate-1", "aggregate-0", ""), "2"), (("aggregate-1", "logs-0"), "0")],
)
def test_a_worker_without_a_slot_takes_the_lowest_free_number(taken: tuple[str, ...], free: str) -> None:
    assert free_slot(taken, "aggregate") == free
