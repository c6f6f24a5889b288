"""How far the properties look that take the longest."""

import os

PROFILE = os.environ.get("SDP_TEST_PROFILE", "fixed")
"""``fixed``: the same examples each time; ``random``: others each time, and twice as many.

``unshrunk``: those of ``fixed``, and what fails is not made smaller.
"""


def examples(number: int) -> int:
    """Return how many examples a property is tried with: of those that are always the same, the first half will do."""
    return number if PROFILE == "random" else number // 2
