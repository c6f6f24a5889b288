"""What pytest collects: one item for each check of each entry of the ICD; `clients.conformance.plugin` makes them."""

from collections.abc import Callable

from clients.conformance.case import Case


def test_icd(case: Case, judged: Callable[[Case], None]) -> None:
    """Compare one aspect of the system with the ICD."""
    judged(case)
