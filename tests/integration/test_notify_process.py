"""`alerts notify` as a process on a real broker, with a mail server and a web hook; all but these are killed."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from facade.flows.alerts.messages import Alarm, state_record
from facade.infra import local
from facade.kernel.bus.port import Record
from sdp_facade_lab.deployment import Broker
from tests.conftest import Deploy
from tests.support.deployment import Deployment
from tests.support.ports import nobody
from tests.support.processes import Running
from tests.support.receivers import HookSink, MailSink, running
from tests.support.waiting import until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

ALARMS, NO_TANGO, TOKEN = 24, "127.0.0.1:1", "a-token-that-no-log-may-have"
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


def notify(deployment: Deployment, rules: Path) -> Running:
    return deployment.launch("notify", "alerts", "notify", rules, PAGER_TOKEN=TOKEN)


def alarms(state: Any, **more: Any) -> list[Record]:
    made = []
    for number in range(ALARMS):
        key = "receiveOverrun", f"receive/{number:04}"
        alarm = Alarm(
            condition=key[0], source=key[1], state=state, through=7, severity="ALARM", text="drops", raised=1, **more
        )
        made.append(state_record(key, alarm))
    return made


def test_each_alarm_is_told_once_by_its_id_whatever_is_killed(
    deploy: Deploy, infra: local.Endpoints, tmp_path: Path
) -> None:
    """A kill -9 while a mail is taken and not noted, another one in between, and the broker's: the mail of each alarm
    has one id, and only what was on its way comes again. A receiver that is away is an alarm, and delays no other."""
    deployment = deploy(prepare=False, tango_host=NO_TANGO)
    deployment.create_topics()
    mail, hook, rules = MailSink(), HookSink(), tmp_path / "notify.toml"
    with running(mail), running(hook), nobody() as dead:
        rules.write_text(RULES.format(mail=mail.port, hook=hook.url, dead=dead))
        mail.hangs = True
        process = notify(deployment, rules)
        deployment.send(*alarms("UNACK"))
        until(lambda: mail.mails and len(hook.requests) == ALARMS, "the mail server hangs, and the web hook is told")
        process.kill()
        hung, mail.hangs = len(mail.mails), False
        mail.freed.set()
        shown = deployment.command("alerts", "notify", str(rules), "--dry-run", PAGER_TOKEN=TOKEN)
        assert shown.count("sent 1 times") >= ALARMS - 1
        assert shown.count("now, message 1") >= ALARMS - 1
        process = notify(deployment, rules)
        until(lambda: len(mail.mails) >= 6, "some mails are sent")
        process.kill()
        process = notify(deployment, rules)
        until(lambda: len(mail.mails) >= 12, "more mails are sent")
        broker = Broker(infra.state_dir)
        broker.kill()
        broker.start()
        until(lambda: len({one["Message-ID"] for one in mail.mails}) == ALARMS, "all mails are sent")
        deployment.send(*alarms("ACKED", acknowledged_at=1))
        until(lambda: len({one["Message-ID"] for one in mail.mails}) == 2 * ALARMS, "the ends are sent by mail")
        until(
            lambda: len({headers["Idempotency-Key"] for headers, _ in hook.requests}) == 2 * ALARMS, "and as requests"
        )
        failed = [json.loads(one.value()) for one in deployment.messages("alerts")]
        assert {one["condition"] for one in failed} == {"notificationFailed"}
        assert any("dead: ConnectionRefusedError" in one["text"] for one in failed)
        process.terminate()
    ids = Counter(str(one["Message-ID"]) for one in mail.mails)
    hooks = Counter(headers["Idempotency-Key"] for headers, _ in hook.requests)
    subjects = {str(one["Subject"]).rpartition(": ")[2] for one in mail.mails}
    assert (len(ids), len(hooks), subjects) == (2 * ALARMS, 2 * ALARMS, {"not acknowledged", "over"})
    for found, cut in ((ids, hung - 1), (hooks, 0)):
        assert found.total() - 2 * ALARMS - cut <= 2, "of each receiver, only what was on its way at a kill comes again"
    assert hook.requests[0][0]["Authorization"] == f"Bearer {TOKEN}"
    assert TOKEN not in process.text
    newest = {one.key(): one.value() for one in deployment.messages("alert-notifications")}
    kept = {key.decode() for key, value in newest.items() if value is not None}
    assert {key for key in kept if not key.startswith("dead/")} == {"process"}
