"""The pictures of the documentation are what their descriptions give, and every text has room."""

from html import unescape
from xml.etree import ElementTree

import pytest

from tests.pictures.__main__ import IMAGES, stale
from tests.pictures.drawing import draw
from tests.pictures.screenshots import DRAWN, PAGES, PRINTED, picture_of
from tests.support.command_line import descend

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


def test_a_screenshot_has_the_words_and_colours_that_were_printed_and_fetches_nothing() -> None:
    picture = picture_of("\x1b[1;31mFAILED\x1b[0m  SDP at 127.0.0.1", "status")
    words = unescape("".join(ElementTree.fromstring(picture).itertext())).replace("\N{NO-BREAK SPACE}", " ")
    assert "sdp-facade status" in words
    assert "FAILED" in words
    assert "SDP at 127.0.0.1" in words
    assert "font-weight: bold" in picture
    assert "url(http" not in picture


def test_the_commands_of_screenshots_exist_and_their_pictures_are_there() -> None:
    for name, words in (PRINTED | DRAWN).items():
        command, _ = descend(words.split())
        assert not hasattr(command, "commands"), words
        assert (IMAGES / name).is_file()


def test_each_picture_of_the_operators_page_is_there_and_small() -> None:
    assert {name: size for name in PAGES if (size := (IMAGES / name).stat().st_size) > 150_000} == {}
