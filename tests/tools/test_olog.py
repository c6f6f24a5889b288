"""Comments of operators come to an Olog, each once, whatever is killed, hangs or refuses."""

import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from facade.flows.alerts.messages import Action, action_records
from facade.flows.overview.page_acts import act_record
from facade.kernel.bus.port import Record
from facade.kernel.clock import ManualClock, Time
from facade.kernel.errors import ConfigError
from facade.kernel.manifest import AuditEntry
from facade.sdp.messages import PageAct
from facade.tools import olog as of_olog
from facade.tools.olog import NOT_POSTED, PROPERTY, Comment, CommentPoster, Olog
from tests.support.drip import Drip
from tests.support.heaps import BASE_US
from tests.support.olog import LOGBOOK, LOGIN, TAG, OlogServer
from tests.support.simulated_bus import MemoryBroker, MemoryBus

COMMENT = Comment("abc", AuditEntry(Time(BASE_US), "comment", "id-7", "", "anna", "text", "comment"))


class Site:
    """A broker with comments, and one life of the process after the other."""

    def __init__(self, server: OlogServer) -> None:
        self.server = server
        self.clock = ManualClock(BASE_US / 1e6)
        self.broker = MemoryBroker(self.clock)
        self.told: list[tuple[str, str]] = []
        """Alerts that were raised, with their texts, and cleared, without one."""
        self.now = self.start()

    def start(self, since: float = 0.0, deployment: str = "mid.") -> CommentPoster:
        to = Olog(self.server.address, LOGIN, [LOGBOOK], [TAG], self.clock)
        alerts: Any = SimpleNamespace(
            raise_alert=lambda condition, severity, text: self.told.append((condition, text)),
            clear=lambda condition, text: self.told.append((condition, "")),
        )
        bus, begin = MemoryBus(self.broker), Time(BASE_US + round(since * 1e6))
        self.now = CommentPoster(bus, to, deployment, begin, alerts, self.clock)
        return self.now

    def comment(self, text: str, about: str = "id-7", at: float = 0.0, act: str = "comment") -> Record:
        return act_record(
            PageAct(
                act=act, person="anna", address="10.1.1.1", target=about, text=text,
                time=round(BASE_US + at * 1e6), origin="web-1, process 7",
            )
        )  # fmt: skip

    def say(self, *texts: str, **more: float) -> None:
        for text in texts:
            self.broker.append(self.comment(text, **more))

    def wait(self, seconds: int = 3) -> None:
        for _ in range(seconds):
            self.now.step()
            self.clock.sleep(1.0)

    @property
    def texts(self) -> list[str]:
        return [log["description"].partition("\n")[0] for log in self.server.logs]


@pytest.fixture
def site() -> Iterator[Site]:
    with OlogServer().served() as server:
        yield Site(server)


def test_a_comment_is_an_entry_with_its_person_and_time(site: Site) -> None:
    site.say("dish 12 was hailed on", about="mid-sdp/subarray/01")
    acknowledged = Action(
        id="1", action="ACKNOWLEDGE", condition="storageLow", source="s/1", operator="bob", comment="disk is ordered",
        time=BASE_US, origin="alerts", client="c",
    )  # fmt: skip
    site.broker.append(action_records(acknowledged)[0])
    site.wait()
    said, done = site.server.logs
    assert said["description"] == "dish 12 was hailed on\n\nanna at 2027-01-15 08:00:00 UTC"
    assert (said["title"], said["level"], said["owner"]) == ("mid-sdp/subarray/01", "Info", "sdp")
    assert [said["logbooks"], said["tags"]] == [[{"name": LOGBOOK}], [{"name": TAG}]]
    assert said["events"] == [{"name": "comment", "instant": BASE_US // 1000}]
    (found,) = said["properties"]
    assert found["name"] == PROPERTY
    about = {one["name"]: one["value"] for one in found["attributes"]}
    assert {name: about[name] for name in ("person", "about")} == {"person": "anna", "about": "mid-sdp/subarray/01"}
    assert (done["title"], done["description"].partition("\n")[0]) == ("ACKNOWLEDGE: storageLow@s/1", "disk is ordered")


def test_only_comments_of_the_time_are_posted(site: Site) -> None:
    site.start(since=60)
    site.say("of last week")
    site.say("of now", at=90)
    for other in (site.comment("mode OFFLINE", at=90, act="admin-mode"), site.comment("", at=90)):
        site.broker.append(other)
    site.broker.append(replace(site.comment("x"), value=b"junk"))
    silent = Action(
        id="1", action="SHELVE", condition="c", source="s", operator="bob", comment="", time=BASE_US + 90_000_000,
        origin="alerts", client="c",
    )  # fmt: skip
    site.broker.append(action_records(silent)[0])
    site.wait()
    assert site.texts == ["of now"]


def test_a_process_that_starts_again_posts_only_what_is_missing(site: Site) -> None:
    site.say("one", "two")
    site.wait()
    site.now.finish()
    site.say("three")
    site.broker.append(site.comment("one"))  # a record that is repeated is the same comment
    site.start()
    site.wait(5)
    assert site.texts == ["one", "two", "three"]
    site.start(deployment="low.")
    site.wait(5)
    assert site.texts.count("one") == 2, "comments of another deployment are others"


def test_an_entry_whose_answer_was_lost_is_found_and_not_made_again(site: Site) -> None:
    site.server.dies_after_taking = True
    site.say("one")
    site.wait(1)
    assert [one.entry.said for one in site.now.waiting] == ["one"]
    site.server.dies_after_taking = False
    site.start()
    site.wait()
    assert site.texts == ["one"]
    assert not site.now.waiting


def test_a_comment_that_is_refused_holds_up_no_other(site: Site) -> None:
    site.server.refuses = "bad"
    site.say("bad", "good", "better")
    site.wait(20)
    assert site.texts == ["good", "better"]
    site.server.refuses = ""
    site.wait(600)
    assert sorted(site.texts) == ["bad", "better", "good"]


def test_comments_that_wait_after_a_failure_are_an_alert_until_all_are_posted(site: Site) -> None:
    site.wait(1)
    assert site.told == [(NOT_POSTED, "")], "an earlier process may have raised it"
    site.server.refuses = "bad"
    site.say("bad", "good")
    site.wait(20)
    assert len(site.told) == 2
    condition, text = site.told[-1]
    assert condition == NOT_POSTED
    assert text.startswith("comments that wait: ")
    assert "400 Bad Request" in text
    site.server.refuses = ""
    site.wait(600)
    assert site.told[-1] == (NOT_POSTED, "")
    assert all(text for _, text in site.told[1:-1])


def test_the_text_of_the_alert_follows_what_waits_and_why(site: Site) -> None:
    site.wait(1)
    site.server.refuses = "bad"
    site.say("bad one")
    site.wait(2)
    site.say("bad two", "bad three")
    site.wait(900)
    _, *raised = [text for _, text in site.told]
    assert raised[0].startswith("comments that wait: 1; ")
    assert raised[-1].startswith("comments that wait: 3; ")
    assert len(raised) <= 15, "each record of an alert goes to everybody"


def test_an_alert_of_an_earlier_process_stays_until_all_comments_are_read_and_posted(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its delay of ten minutes would begin anew with each start."""
    site.say("one", "two")
    monkeypatch.setattr(of_olog, "_MOST_READ", 1)
    take = site.now._reader.take
    site.now._reader.take = lambda limit, timeout: ()  # the brokers do not answer yet
    site.wait(5)
    assert site.told == []
    site.now._reader.take = take
    site.wait(1)
    assert (site.texts, site.told) == (["one"], [])
    site.wait(5)
    assert (site.texts, site.told) == (["one", "two"], [(NOT_POSTED, "")])


def test_an_olog_that_hangs_or_is_away_gets_each_comment_afterwards(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_olog, "_PATIENCE", 0.05)
    site.server.hangs.set()
    site.say("one")
    site.wait(60)
    assert len(site.now.waiting) == 1
    assert site.server.searches == 0
    site.server.hangs.clear()
    site.wait(120)
    assert site.texts == ["one"]


def test_text_of_people_has_no_control_characters(site: Site) -> None:
    site.say("red \x1b[31m text\nand a line", about="a\rb")
    site.wait()
    (log,) = site.server.logs
    assert not {"\x1b", "\r"} & {*log["description"], *log["title"]}


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"])
def test_an_answer_that_comes_byte_by_byte_ends_in_time(head: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, closing(Drip(server, head)) as clock:
        to = Olog(f"http://127.0.0.1:{server.getsockname()[1]}", LOGIN, [LOGBOOK], [TAG], clock)
        with pytest.raises(OSError, match="its answer takes longer than 10 s"):
            to.has(COMMENT)


@pytest.mark.parametrize(
    "said", [{"logs": [{"id": 1, "properties": []}]}, [], {}, {"logs": None}, pytest.param(b"[" * 900_000, id="deep")]
)
def test_an_olog_that_answers_another_question_has_no_entry_and_gets_none(site: Site, said: Any) -> None:
    """Neither may a comment count as posted because of an entry of others, nor be posted again after each start."""
    site.server.answers_always = said
    site.say("one")
    site.wait()
    assert (len(site.now.waiting), site.texts) == (1, [])
    site.server.answers_always = None
    site.wait(10)
    assert site.texts == ["one"]


@pytest.mark.parametrize(
    "address",
    [
        "olog.example.org", "ftp://olog.example.org/Olog", "https://u:secret@example.org", "https://:secret@example.org",
        "https://olog.example.org:80a/Olog", "https://[olog/Olog",
    ],
)  # fmt: skip
def test_a_wrong_address_is_refused_without_its_password(address: str) -> None:
    with pytest.raises(ConfigError, match="expected an address such as https") as error:
        Olog(address, "", [LOGBOOK], [], ManualClock())
    assert "secret" not in str(error.value)
