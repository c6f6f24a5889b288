"""The phases of a run, one after the other, and how long each took."""

from proving.progress import Progress


class Phases:
    """Names what is under way, and accounts for the time at the end."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self._begun: list[tuple[str, float]] = []

    @property
    def current(self) -> str:
        """Return the name of the phase that is under way."""
        return self._begun[-1][0] if self._begun else "preparation"

    def begin(self, name: str) -> None:
        """End the phase that is under way, and begin another one."""
        self._begun.append((name, self.progress.elapsed))

    def __str__(self) -> str:
        ends = [begin for _, begin in self._begun[1:]] + [self.progress.elapsed]
        took = zip(self._begun, ends, strict=True)
        return ", ".join(f"{name} {end - begin:.0f} s" for (name, begin), end in took)
