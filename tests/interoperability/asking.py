"""Clicks and time from a question to its answer on the operator's page."""

import re

from playwright.sync_api import Locator, Page, Position, expect


class Asking:
    """A person with a question, who begins at the overview of now: counts the clicks to its answer."""

    def __init__(self, page: Page, most: int = 2) -> None:
        self._page, self._most, self.clicks = page, most, 0
        page.goto(re.split("[?#]", page.url)[0] + "#/")
        expect(page.get_by_role("heading", name="Is all well?")).to_be_visible()
        self._begin = self._now()

    def click(self, on: Locator, position: Position | None = None) -> None:
        self._count()
        on.click(position=position)

    def write(self, field: Locator, text: str) -> None:
        """Type into a field, which counts as a click."""
        self._count()
        field.fill(text)

    def sees(self, *answer: Locator) -> float:
        """Wait for the parts of an answer; return the time since the overview was there, by the browser [ms]."""
        for one in answer:
            one.wait_for()
        return self._now() - self._begin

    def _count(self) -> None:
        self.clicks += 1
        assert self.clicks <= self._most, f"each answer is at most {self._most} clicks away"

    def _now(self) -> float:
        return float(self._page.evaluate("performance.now()"))
