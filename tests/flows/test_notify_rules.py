"""The rules by which people elsewhere are told of alarms, and the messages that they get."""

import json
import re
import socket
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from facade.flows.alerts import cli
from facade.flows.alerts.messages import Alarm, AlertNotification
from facade.flows.alerts.notify_rules import MailServer, Receiver, Rule, Rules, Secret, read_rules
from facade.flows.alerts.receivers import fingerprint, labels, mail_of, message_id, poster, request_of
from facade.kernel.cli.app import app
from facade.kernel.clock import SystemClock, Time, as_time
from facade.kernel.errors import ConfigError
from facade.kernel.icd.load import load
from tests.support.drip import Drip
from tests.support.receivers import HookSink, MailSink, running
from tests.support.waiting import until

ICD = load()
HEAD = '[receivers.pager]\nwebhook = "http://pager.example.org/"\n'
RULE = '[[rules]]\nto = ["pager"]\nafter = "10m"\n'
MAIL = '[mail]\nserver = "smtp.example.org:587"\nsender = "sdp@example.org"\n'
NOTE = AlertNotification(
    phase="SENDING",
    receiver="pager",
    condition="receiveOverrun",
    source="receive/0007",
    number=1,
    since=Time(1_800_000_000_000_000),
    severity="ALARM",
    text="312 heaps/s dropped",
    time=Time(1_800_000_600_000_000),
    origin="x",
)


def read(tmp_path: Path, text: str) -> Rules:
    file = tmp_path / "notify.toml"
    file.write_text(text)
    return read_rules(file)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[receivers", "notify.toml: not TOML: "),
        (RULE, "receivers: expected tables [receivers.NAME], got none"),
        (HEAD, "rules: expected tables [[rules]], got none"),
        (f"{HEAD}{RULE}\n[other]\n", "line 7: other: expected one of receivers, rules, mail, zone, got this key"),
        (f"{HEAD}{RULE}hour = 1\n", "line 3: rules[0]: Object contains unknown field `hour`"),
        (f"{HEAD}{RULE}{RULE}hours = 7\n", "line 6: rules[1]: Expected `array`, got `int` - at `$.hours`"),
        (f'{HEAD}{RULE}hours = ["8-9"]\n', "line 3: rules[0]: hours: expected hours such as 18:00-08:00, got '8-9'"),
        (f'{HEAD}{RULE}hours = ["08:00-08:00"]\n', "expected two different times, got '08:00-08:00'"),
        (f'{HEAD}{RULE}severity = "HIGH"\n', "line 3: rules[0]: Invalid enum value 'HIGH' - at `$.severity`"),
        (HEAD + '[[rules]]\nto = ["pager"]\n', "rules[0]: Object missing required field `after`"),
        (HEAD + '[[rules]]\nto = ["pager"]\nafter = "10"\n', "after: expected a duration such as 90s, 10m"),
        (HEAD + '[[rules]]\nto = ["boss"]\nafter = "1m"\n', "rules[0]: to: expected some of pager, got 'boss'"),
        (f'zone = "Mars/Crater"\n{HEAD}{RULE}', "line 1: zone: expected the name of a time zone"),
        (HEAD.replace("pager]", '"night shift"]') + RULE, "expected a name of letters"),
        ('[receivers.pager]\nmail = "a@example.org"\n' + RULE, "line 1: receivers.pager: expected a table [mail]"),
        (f'{HEAD}mail = "a@example.org"\n{RULE}', "expected mail or webhook, got both or none"),
        (f"{MAIL}[receivers.pager]\nmail = 'a@b, c@d'\n{RULE}", "mail: expected one address such as"),
        ('[receivers.pager]\nwebhook = "ftp://x"\n' + RULE, "webhook: expected http:// or https:// with a host"),
        ('[receivers.pager]\nwebhook = "https://a:b@x/"\n' + RULE, "without a user or a query, as these may be secret"),
        (
            HEAD + 'token = "s3cret"\n' + RULE,
            "receivers.pager: token: expected {file = ...} or {variable = ...}, as no secret",
        ),
        (HEAD + 'token = {file = "/no/such"}\n' + RULE, "expected a secret in the file /no/such, got: No such file"),
        (HEAD + 'token = {variable = "NO_SUCH"}\n' + RULE, "expected a secret in the variable NO_SUCH, got none"),
        (HEAD + 'form = "alertmanager"\n' + RULE + "ends = false\n", "ends: expected true for pager"),
        (MAIL + 'user = "sdp"\n' + HEAD + RULE, "line 1: mail: expected user and password, or neither"),
        (MAIL.replace(":587", "") + HEAD + RULE, "server: expected host and port such as smtp.example.org:587"),
        (HEAD.replace("pager]", '"ops [night]"]') + RULE, "receivers.ops [night]: expected a name of letters"),
        (f'"rules[x]" = 1\n{HEAD}{RULE}', "rules[x]: expected one of receivers, rules, mail, zone, got this key"),
        *((HEAD.replace("org/", f"org:{port}/") + RULE, "webhook: expected a port") for port in ("abc", "99999", "0")),
        *((HEAD.replace("org/", f"org/{path}") + RULE, "webhook: expected a path") for path in ("a b", "\u00e4")),
        *(
            (f"{MAIL}[receivers.pager]\nmail = '{one}'\n{RULE}", "mail: expected one address such as")
            for one in ("a@[x", "a(b@c", "a@b.", "a@b..c", "a:b@c")
        ),
        (HEAD + RULE.replace("10m", "0.0000001s"), "after: expected at least 1s, got '0.0000001s'"),
        (f'{HEAD}{RULE}again = "0.5s"\n', "again: expected at least 1s, got '0.5s'"),
    ],
)
def test_a_wrong_rule_is_told_with_its_line_and_key(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)) as error:
        read(tmp_path, text)
    assert str(error.value).startswith(f"{tmp_path}/notify.toml: ")
    assert "s3cret" not in str(error.value)


def test_the_rules_of_the_documentation_are_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "monitor.md").read_text()
    (text,) = (one for one in re.findall(r"```toml\n(.*?)```", page, re.DOTALL) if "[[rules]]" in one)
    monkeypatch.setattr(Secret, "read", lambda self: "s")
    assert len(read(tmp_path, text).rules) > 1


@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_a_rule_for_conditions_that_the_interface_lacks_is_told_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    """Sources may raise conditions of their own."""
    monkeypatch.setattr(cli, "run_worker", lambda *_: None)
    monkeypatch.setattr(cli, "_show", lambda *_: None)
    file = tmp_path / "notify.toml"
    file.write_text(
        f'{HEAD}{RULE}{RULE}conditions = ["receive*", "receiveOverun", "heaterCold", "x*", "workerSilent"]\n'
    )
    done = CliRunner().invoke(app, ["alerts", "notify", str(file), *options])
    assert done.exit_code == 0, done.output
    where, own = (
        f"{file}: rules[1]: conditions: expected a condition of the interface",
        "it fits no alarm unless a source",
    )
    said = done.stderr.splitlines()
    assert [line.partition(";")[0] for line in said] == [
        f"{where}, which has receiveOverrun, got 'receiveOverun'",
        f"{where}, got 'heaterCold'",
        f"{where}, got 'x*'",
    ]
    assert all(own in line for line in said)


@pytest.mark.parametrize("kind", ["file", "variable"])
def test_a_secret_ends_with_its_line_and_one_that_no_header_takes_is_not_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    file = tmp_path / "token"

    def secret(text: str) -> Secret:
        file.write_text(text)
        monkeypatch.setenv("TOKEN", text)
        return Secret(**{kind: {"file": str(file), "variable": "TOKEN"}[kind]})

    assert secret("s3cret\n").read() == "s3cret"
    for text in ("s3c\nret", "s3cret\x7f", "s3cr\u00e9t", "\n"):
        with pytest.raises(ValueError, match=f"expected a secret .*in the {kind} .*, got (others|none)") as error:
            secret(text)
        assert "s3c" not in str(error.value)


def alarm(condition: str = "receiveOverrun", source: str = "ingest/0007", severity: str = "ALARM") -> Alarm:
    return Alarm(condition=condition, source=source, severity=severity, state="UNACK", through=1)


@pytest.mark.parametrize(
    ("more", "covers"),
    [
        ({}, True),
        ({"severity": "ALARM"}, True),
        ({"severity": "CRITICAL"}, False),
        ({"conditions": ["stream*", "receive*"]}, True),
        ({"conditions": ["receive"]}, False),
        ({"places": ["ingest/*"]}, True),
        ({"places": ["ingest/00[1-9]*", "rack/*"]}, False),
    ],
)
def test_a_rule_is_about_conditions_places_and_severities(more: dict[str, object], covers: bool) -> None:
    assert Rule(to=("pager",), after="1m", **more).covers(alarm()) is covers


@given(
    begin=st.integers(0, 1439),
    length=st.integers(1, 1439),
    at=st.integers(0, 2 * 86_400),
    zone=st.sampled_from(["UTC", "Africa/Johannesburg", "Australia/Perth"]),
)
def test_hours_are_those_of_the_zone_also_over_midnight(begin: int, length: int, at: int, zone: str) -> None:
    end = (begin + length) % 1440
    text = f"{begin // 60:02}:{begin % 60:02}-{end // 60:02}:{end % 60:02}"
    now = datetime(2026, 11, 28, tzinfo=UTC) + timedelta(seconds=at)
    local = now.astimezone(ZoneInfo(zone))
    since = (local.hour * 60 + local.minute - begin) % 1440
    rule = Rule(to=("pager",), after="1m", hours=(text,))
    assert rule.applies(as_time(now.timestamp()), ZoneInfo(zone)) is (since < length)


def test_the_first_rule_that_fits_counts_for_a_receiver() -> None:
    receivers = {"a": Receiver(webhook="http://a/"), "b": Receiver(webhook="http://b/")}
    night = Rule(to=("a", "b"), after="1m", hours=("18:00-06:00",))
    other = Rule(to=("a",), after="1h")
    rules = Rules(receivers=receivers, rules=[night, other])
    noon, midnight = (as_time(datetime(2026, 11, 28, hour, tzinfo=UTC).timestamp()) for hour in (12, 0))
    assert [*rules.for_alarm(alarm())] == ["a", "b"]
    assert [rules.rule("a", alarm(), at) for at in (noon, midnight, None)] == [other, night, night]
    assert rules.rule("b", alarm(), noon) is None


# Messages


def test_a_mail_has_its_id_and_no_line_of_a_stranger() -> None:
    server = MailServer(server="smtp.example.org:25", sender="sdp@example.org", tls="none")
    note = AlertNotification(
        **{name: getattr(NOTE, name) for name in NOTE.__struct_fields__}
        | {"source": "receive/1\r\nBcc: all@example.org", "text": "drops\nX: \x1b[2J"}
    )
    mail = mail_of("mid.", server, "shift@example.org", note, ICD.conditions["receiveOverrun"])
    assert mail["To"] == "shift@example.org"
    assert mail["Bcc"] is None
    assert mail["Subject"].startswith("[mid] ALARM receiveOverrun at receive/1\\u000d\\u000aBcc")
    assert mail["Message-ID"] == f"<{message_id('mid.', note)}@example.org>"
    assert "\x1b" not in mail.get_content()
    assert ICD.conditions["receiveOverrun"].response in mail.get_content()
    assert bytes(mail) == bytes(mail_of("mid.", server, "shift@example.org", note, ICD.conditions["receiveOverrun"]))


def test_each_message_has_an_id_of_its_own_and_later_ones_name_the_first() -> None:
    def changed(**more: object) -> AlertNotification:
        return AlertNotification(**{name: getattr(NOTE, name) for name in NOTE.__struct_fields__} | more)

    others = [changed(number=2), changed(phase="ENDING"), changed(since=1), changed(source="x"), changed(receiver="b")]
    assert len({message_id("mid.", one) for one in (NOTE, *others)} | {message_id("low.", NOTE)}) == 7
    assert message_id("mid.", changed(origin="y", text="z", time=1)) == message_id("mid.", NOTE)
    host = f"{'h' * 60}.example.org"
    server = MailServer(server="smtp.example.org:25", sender=f"sdp@{host}", tls="none")
    first = f": <{message_id('mid.', NOTE)}@{host}>\n".encode()
    for one in others[:2]:
        mail = bytes(mail_of("mid.", server, "a@example.org", one, None))
        assert b"In-Reply-To" + first in mail
        assert b"References" + first in mail


def test_a_web_hook_gets_the_form_of_alertmanager() -> None:
    (alert,) = json.loads(request_of("mid.", "alertmanager", NOTE, None))
    assert alert["labels"] == labels("mid.", NOTE)
    assert (alert["startsAt"], alert["endsAt"]) == ("2027-01-15T08:00:00.000+00:00", "2027-02-14T08:10:00.000+00:00")
    hook = json.loads(request_of("mid.", "webhook", NOTE, None))
    assert (hook["version"], hook["status"], hook["receiver"]) == ("4", "firing", "pager")
    (only,) = hook["alerts"]
    assert (only["fingerprint"], only["endsAt"]) == (fingerprint(alert["labels"]), "0001-01-01T00:00:00Z")


def rules_for(mail: MailSink, hook: HookSink, token: Path) -> Rules:
    return Rules(
        mail=MailServer(server=f"127.0.0.1:{mail.port}", sender="sdp@example.org", tls="none"),
        receivers={
            "shift": Receiver(mail="shift@example.org"),
            "pager": Receiver(webhook=hook.url, token=Secret(file=str(token))),
        },
        rules=[],
    )


def test_a_message_is_taken_or_refused_and_the_token_is_read_anew(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    mail, hook = MailSink(), HookSink()
    with running(mail), running(hook):
        post = poster(rules_for(mail, hook, token), "mid.", ICD.conditions, SystemClock())

        def error(receiver: str) -> str:
            sending = post(receiver, NOTE)
            until(lambda: sending.error is not None, "the attempt ends")
            return sending.error or ""

        assert [error("shift"), error("pager")] == ["", ""]
        assert mail.mails[0]["Subject"] == "[mid] ALARM receiveOverrun at receive/0007: not acknowledged"
        token.write_text("second\n")
        mail.refuse, hook.status = b"550 no such user", 503
        assert error("shift") == "shift@example.org: 550 no such user"
        assert error("pager").startswith("OSError: expected a status of 200 to 299, got 503")
        assert [headers["Authorization"] for headers, _ in hook.requests] == ["Bearer first", "Bearer second"]
        assert hook.requests[0][0]["Idempotency-Key"] == message_id("mid.", NOTE)
    assert error("shift").startswith("ConnectionRefusedError")


def test_a_mail_server_that_does_not_greet_is_cut() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        mail = MailServer(server=f"127.0.0.1:{silent.getsockname()[1]}", sender="sdp@example.org", tls="none")
        rules = Rules(mail=mail, receivers={"shift": Receiver(mail="shift@example.org")}, rules=[])
        sending = poster(rules, "mid.", {}, SystemClock())("shift", NOTE)

        def error_after_cut() -> str | None:
            sending.cut()
            return sending.error

        # Without the cut, it ends with "timed out".
        said = until(error_after_cut, "the thread ends")
    assert said == "SMTPServerDisconnected: Connection unexpectedly closed"


def test_a_web_hook_that_answers_byte_by_byte_has_failed_after_its_time() -> None:
    head = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as server, closing(Drip(server, head)) as clock:
        receivers = {"pager": Receiver(webhook=f"http://127.0.0.1:{server.getsockname()[1]}/")}
        sending = poster(Rules(receivers=receivers, rules=[]), "mid.", {}, clock)("pager", NOTE)
        said = until(lambda: sending.error, "the thread ends")
    assert said == "TimeoutError: its answer takes longer than 10 s"
