"""How a command is told to end: a second SIGTERM does not end what the first one has begun."""

import os
import signal

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
