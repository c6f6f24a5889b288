"""Alarms on their whole way to people elsewhere; each part of it is killed."""

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import httpx2
import pytest

from facade.infra import local
from facade.infra.ports import choose_port
from facade.sdp import alarm_states as states
from sdp_facade_lab.deployment import Broker
from tests.conftest import Deploy
from tests.support.alerting import alert
from tests.support.deployment import Deployment
from tests.support.ports import nobody
from tests.support.receivers import HookSink, MailSink, running
from tests.support.waiting import HANG, until, until_equal

pytestmark = [pytest.mark.kafka, pytest.mark.tango, pytest.mark.slow]

ALARMS, FIRST, EACH = 80, 8, 6
CONDITION, TOKEN, OPERATOR = "receiveOverrun", "a-token-that-no-log-may-have", "token-of-anna-the-operator"
RULES = """
[mail]
server = "127.0.0.1:{mail}"
sender = "sdp@example.org"
tls = "none"

[receivers.shift]
mail = "shift@example.org"
[receivers.pager]
webhook = "{hook}"
token = {{variable = "PAGER_TOKEN"}}
[receivers.dead]
webhook = "http://{dead}/"

[[rules]]
to = ["shift", "pager"]
conditions = ["receive*"]
after = "1s"
[[rules]]
to = ["dead"]
places = ["receive/0000"]
after = "1s"
"""

WEB = """
from facade.kernel.cli.__main__ import main
from sdp_facade_clients.web import cli

cli.how_to_install = str
main()
"""
"""The server of the page also where the libraries that browsers load, which come by npm, are not installed."""


def by_message(pairs: Iterable[tuple[Any, Any]]) -> dict[str, set[str]]:
    """Return the ids under which each message has come."""
    found = defaultdict(set)
    for message, id in pairs:
        found[str(message)].add(str(id))
    return found


def mails(sink: MailSink) -> dict[str, set[str]]:
    return by_message((one["Subject"], one["Message-ID"]) for one in list(sink.mails))


def requests(sink: HookSink) -> dict[str, set[str]]:
    return by_message(
        ((body["status"], body["groupLabels"]["source"]), headers["Idempotency-Key"])
        for headers, body in list(sink.requests)
    )


class Page:
    """The page's server as a browser has it."""

    def __init__(self, deployment: Deployment) -> None:
        port, tokens = choose_port(), deployment.folder / "tokens.txt"
        tokens.write_text(f"operator anna {OPERATOR}\n")
        tokens.chmod(0o600)
        deployment.start("web", [sys.executable, "-c", WEB, "web", "--port", str(port), "--tokens", str(tokens)])
        address = f"http://localhost:{port}"
        self._http = httpx2.Client(base_url=address, headers={"Origin": address}, timeout=HANG)
        self.close = self._http.close

    def alarms(self) -> list[dict[str, Any]]:
        """Return the alarms that it shows; none while it, or the device server, does not answer."""
        try:
            answer = self._http.get("/api/alarms")
        except httpx2.TransportError:
            return []
        return answer.json() if answer.is_success else []

    def shown(self) -> list[str]:
        return sorted(one["source"] for one in self.alarms() if one["condition"] == CONDITION)

    def sign_in(self) -> None:
        assert self._http.post("/api/sign-in", json={"token": OPERATOR}).is_success

    def acknowledge(self) -> bool:
        """Acknowledge as many alarms as the page takes at once; return whether all are acknowledged."""
        shown = self.alarms()
        for one in shown:
            if one["condition"] == CONDITION and one["state"] in states.UNACKNOWLEDGED:
                about = {key: one[key] for key in ("condition", "source", "occurrence")}
                if not self._http.post("/api/alarm", json={"action": "ack", **about}).is_success:
                    break
        return {one["state"] for one in shown if one["condition"] == CONDITION} == {states.ACKED}


def test_each_alarm_is_told_once_by_its_id_whatever_is_killed(
    deploy: Deploy, infra: local.Endpoints, tmp_path: Path
) -> None:
    """While alarms come, a kill -9 of each process on their way, of the broker, and of each receiver when it has taken
    a message and not answered: the page shows each alarm once, each message has one id, and only what was on its way
    comes again. A receiver that is away is an alarm, and delays no other."""
    deployment, broker = deploy(nodes=1), Broker(infra.state_dir)
    deployment.server("alerts")
    page, mail, hook, rules = Page(deployment), MailSink(), HookSink(), tmp_path / "notify.toml"
    places, come = (f"receive/{number:04}" for number in range(ALARMS)), list[str]()

    def some_come(count: int = EACH) -> None:
        new = [*islice(places, count)]
        deployment.send(*(alert(source=place) for place in new))
        come.extend(new)

    def restarted(name: str) -> Callable[[], AbstractContextManager[None]]:
        @contextmanager
        def away() -> Iterator[None]:
            deployment.processes.kill(name)
            yield
            deployment.processes.start_again(name)

        return away

    @contextmanager
    def broker_away() -> Iterator[None]:
        broker.kill()
        yield
        broker.start()

    def receiver(sink: MailSink | HookSink, taken: list[Any], name: str) -> Callable[[], AbstractContextManager[None]]:
        refused = f"receiver={name} reason=ConnectionRefusedError"

        @contextmanager
        def away() -> Iterator[None]:
            sink.hangs, before = True, len(taken)
            yield
            until(lambda: len(taken) > before, f"{name} has taken a message")
            with sink.killed():
                until(lambda: refused in process.text, f"{name} does not listen")

        return away

    with closing(page), running(mail), running(hook), nobody() as dead, ThreadPoolExecutor() as pool:
        rules.write_text(RULES.format(mail=mail.port, hook=hook.url, dead=dead))
        mail.hangs = True
        process = deployment.launch("notify", "alerts", "notify", rules, PAGER_TOKEN=TOKEN)
        some_come(FIRST)
        until(lambda: mail.mails and len(requests(hook)) == FIRST, "the mail server hangs, and the web hook is told")
        process.kill()
        mail.hangs = False
        mail.freed.set()
        shown = deployment.command("alerts", "notify", str(rules), "--dry-run", PAGER_TOKEN=TOKEN)
        assert shown.count("sent 1 times") >= FIRST - 1
        assert shown.count("now, message 1") >= FIRST - 1
        deployment.processes.start_again("notify")
        for away in (
            restarted("web"),
            restarted("alerts"),
            broker_away,
            restarted("notify"),
            receiver(mail, mail.mails, "shift"),
            receiver(hook, hook.requests, "pager"),
        ):
            some_come()
            until(lambda: len(mails(mail)) > len(come) - EACH, "some of the new alarms are told, and others not yet")
            with away():
                more = pool.submit(some_come)
            more.result()
            until_equal(page.shown, come, "the page shows each alarm once")
        assert len(come) == ALARMS
        until(lambda: len(mails(mail)) == len(requests(hook)) == ALARMS, "all are told")
        text = "dead: ConnectionRefusedError"
        until(
            lambda: any(one["condition"] == "notificationFailed" and text in one["text"] for one in page.alarms()),
            "the page shows that a receiver is away",
        )
        page.sign_in()
        until(page.acknowledge, "all are acknowledged")
        until(lambda: len(mails(mail)) == len(requests(hook)) == 2 * ALARMS, "the ends are told")

        def kept() -> set[str]:
            newest = {one.key().decode(): one.value() for one in deployment.messages("alert-notifications")}
            return {key for key, value in newest.items() if value is not None and not key.startswith("dead/")}

        until_equal(kept, {"process"}, "nothing is left to tell")
        deployment.processes["notify"].terminate()
    for name, taken, found in (("shift", mail.mails, mails(mail)), ("pager", hook.requests, requests(hook))):
        assert [one for one, ids in found.items() if len(ids) > 1] == []
        assert len(set.union(*found.values())) == len(found) == 2 * ALARMS
        kills, failures = 2, process.text.count(f"notification failed receiver={name}")
        assert len(taken) - 2 * ALARMS <= kills + failures, "only what was on its way comes again"
    assert hook.requests[0][0]["Authorization"] == f"Bearer {TOKEN}"
    assert TOKEN not in process.text
