"""Cross checks of the interface: what one file says must make sense beside the others.

Each check is a function from the interface to findings and knows one rule; `CHECKS` is the list.
A check stays silent about what another one reports, so that one mistake gives one finding.
"""

from collections.abc import Callable, Iterator

from facade.icd import check_attributes, check_classes, check_commands, check_schemas, check_topics
from facade.icd.finding import Finding
from facade.icd.model import Icd

Check = Callable[[Icd], Iterator[Finding]]

CHECKS: tuple[Check, ...] = (
    *check_classes.CHECKS,
    *check_attributes.CHECKS,
    *check_commands.CHECKS,
    *check_topics.CHECKS,
    *check_schemas.CHECKS,
)
"""The checks of every start."""

THOROUGH_CHECKS: tuple[Check, ...] = check_schemas.THOROUGH_CHECKS
"""Those that need slow libraries: for ``icd check`` and the tests."""


def check(icd: Icd, *, thorough: bool = False) -> list[Finding]:
    """Run the checks and give all that they found."""
    checks = CHECKS + THOROUGH_CHECKS if thorough else CHECKS
    return [finding for one in checks for finding in one(icd)]
