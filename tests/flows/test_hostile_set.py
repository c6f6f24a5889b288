"""One hostile set of records walks over all readers: none of them fails, and each record has one outcome."""

import logging
from pathlib import Path

import pytest

from tests.support.hostile import FORMS
from tests.support.hostile_walk import READERS, Walk
from tests.support.whole import Site

pytestmark = pytest.mark.needs("facade.archive", "facade.sdk", "facade.tools", "sdp_facade_lab")

NAMES = [*FORMS]
TOGETHER = 6


@pytest.mark.parametrize("first", range(0, len(NAMES), TOGETHER))
def test_no_reader_fails_and_each_record_has_one_outcome(
    first: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        walk = Walk(Site(), tmp_path, *NAMES[first : first + TOGETHER])
        for reader in READERS:
            reader(walk)
    assert not [one.getMessage() + (one.exc_text or "") for one in caplog.records]
