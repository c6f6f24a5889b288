"""The pictures of the documentation are what their descriptions give, and those of programs are there."""

from tests.pictures.__main__ import IMAGES, stale
from tests.pictures.screenshots import DRAWN, PAGES, PRINTED
from tests.support.command_line import descend


def test_the_pictures_are_up_to_date() -> None:
    assert len(list(IMAGES.glob("*.toml"))) >= 5
    assert [file.name for file in stale()] == [], "run `make pictures`"


def test_the_commands_of_screenshots_exist_and_their_pictures_are_there() -> None:
    for name, words in (PRINTED | DRAWN).items():
        command, _ = descend(words.split())
        assert not hasattr(command, "commands"), words
        assert (IMAGES / name).is_file()


def test_each_picture_of_the_operators_page_is_there_and_small() -> None:
    assert {name: size for name in PAGES if (size := (IMAGES / name).stat().st_size) > 150_000} == {}
