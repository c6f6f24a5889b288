"""The output of a run: time-stamped steps, signs of life, and the demo's live table below them."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rich.markup import escape

from facade.kernel.clock import Clock
from facade.kernel.console import Console
from facade.kernel.errors import InfraError
from sdp_facade_clients.watch import PLAIN_INTERVAL, Watch, print_plain

_LOOK_AGAIN = 0.05
_LONGEST = 200.0
"""Longest wait with patience [s], where no longer one is asked for: what has not come by then does not come."""


class ProgressLine:
    """Prints, and waits in such a way that the view stays fresh and no dead process goes unnoticed.

    Parameters
    ----------
    live
        Whether to show the live table where there is a terminal.
    """

    def __init__(self, console: Console, clock: Clock, *, live: bool = False) -> None:
        self.console, self.clock = console, clock
        self._live = live and console.is_terminal
        self._begin = self._printed = clock.monotonic()
        self._watch: Watch | None = None
        self.check: Callable[[], None] = _all_is_well
        """Called while waiting; raises if something is wrong."""
        self.patience = 1.0
        """Factor on the longest waits."""
        self.waiting_for = ""
        """Name of the awaited event; empty: none, or it has no name."""

    @property
    def elapsed(self) -> float:
        """Time since the beginning [s]."""
        return self.clock.monotonic() - self._begin

    def step(self, text: str) -> None:
        with suppress(OSError):  # the reader of the output may have gone; the run goes on
            self.console.print(f"[dim]{self.elapsed:6.1f} s[/dim]  {escape(text)}", highlight=False, soft_wrap=True)
            sys.stdout.flush()

    @contextmanager
    def view(self, watch: Watch) -> Iterator[None]:
        """Show the live table, or now and then a plain line, while waiting."""
        self._watch = watch
        try:
            if self._live:
                with watch.live(self.console, screen=False):
                    yield
            else:
                yield
        finally:
            self._watch = None

    def wait(self, seconds: float, what: str = "") -> None:
        """Wait [s]; what for is printed now and then, if it has a name."""
        if what:
            self.step(f"  {what}: {seconds:g} s")
        self._wait(lambda: False, seconds, what)

    def wait_until(self, condition: Callable[[], bool], seconds: float, what: str = "") -> float | None:
        """Wait for a condition and give how long it took [s]; None: it did not come true in time.

        Parameters
        ----------
        seconds
            Longest wait; on a slow machine it is longer.
        """
        return self._wait(condition, self.longest(seconds), what)

    def demand(self, condition: Callable[[], bool], seconds: float, what: str) -> float:
        """Wait for a condition as `wait_until` does and give how long it took [s]."""
        took = self.wait_until(condition, seconds, what)
        if took is None:
            raise InfraError(f"{what}: expected within {self.longest(seconds):.3g} s, got nothing")
        return took

    def longest(self, seconds: float) -> float:
        return min(seconds * self.patience, max(seconds, _LONGEST))

    def _wait(self, condition: Callable[[], bool], seconds: float, what: str) -> float | None:
        begin = self._printed = self.clock.monotonic()
        self.waiting_for = what
        while True:
            if condition():
                self.waiting_for = ""
                return self.clock.monotonic() - begin
            left = begin + seconds - self.clock.monotonic()
            if left <= 0:
                self.waiting_for = ""
                return None
            self.check()
            if self.clock.monotonic() - self._printed >= PLAIN_INTERVAL:
                self._printed = self.clock.monotonic()
                self._sign_of_life(what, self._printed - begin)
            self.clock.sleep(min(_LOOK_AGAIN, left))

    def _sign_of_life(self, what: str, waited: float) -> None:
        if what:
            self.step(f"  still waiting after {waited:.0f} s: {what}")
        if self._watch is not None and not self._live:
            print_plain(self.console, self._watch.scene())


def _all_is_well() -> None:
    """Find nothing wrong: nothing runs yet."""
