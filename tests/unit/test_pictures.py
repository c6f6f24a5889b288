"""The pictures of the documentation are what their descriptions give, and every text has room."""

from xml.etree import ElementTree

import pytest

from tests.pictures.__main__ import IMAGES, stale
from tests.pictures.drawing import draw

BOX = {"name": "a", "at": [10, 10, 100, 40], "kind": "topic", "text": "commands"}


def test_the_pictures_are_up_to_date() -> None:
    assert len(list(IMAGES.glob("*.toml"))) >= 5
    assert [file.name for file in stale()] == [], "run `make pictures`"


def test_a_picture_has_both_schemes_and_its_words() -> None:
    picture = draw({"title": "A & B", "height": 100, "box": [BOX], "arrow": [{"path": ["a.right", [300, ""]]}]})
    root = ElementTree.fromstring(picture)
    assert root.get("aria-label") == "A & B"
    assert "prefers-color-scheme:dark" in picture
    assert "M110 30L300 30" in picture
    assert ">commands</text>" in picture


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"text": "far too many words for it"}, "wider than its box"),
        ({"at": [700, 10, 100, 40]}, "outside the picture"),
        ({"at": [10, 90, 100, 40]}, "outside the picture"),
    ],
)
def test_what_has_no_room_is_refused(changed: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw({"title": "T", "height": 100, "box": [BOX | changed]})
