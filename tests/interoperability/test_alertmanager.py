"""Debian's Alertmanager takes what `alerts notify` sends, and tells its own receivers."""

import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from facade.flows.alerts.messages import AlertNotification
from facade.flows.alerts.notify_rules import Receiver, Rules
from facade.flows.alerts.receivers import fingerprint, labels, poster, request_of
from facade.infra.ports import choose_port
from facade.kernel.clock import SECOND, SystemClock, utc_text
from facade.kernel.icd.load import load
from tests.interoperability.foreign import PROXIES
from tests.support.receivers import HookSink, running
from tests.support.waiting import HANG, until

NAME = "prometheus-alertmanager"
UNPACKED = PROXIES / "root" / "usr" / "bin" / NAME
CONFIG = """
route: {{receiver: sdp, group_by: [alertname, source], group_wait: 0s, group_interval: 1s}}
receivers: [{{name: sdp, webhook_configs: [{{url: "{url}", send_resolved: true}}]}}]
"""


TEMPLATES = Path("/usr/share/prometheus/alertmanager/default.tmpl")
"""Debian's program reads its templates there, and ends without them."""


def beside_its_templates() -> list[str]:
    """Return the words before a command for which the files of the unpacked package are in their place."""
    mount = f"mount -t overlay -o lowerdir={PROXIES / 'root' / 'usr' / 'share'}:/usr/share overlay /usr/share"
    words = ["unshare", "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh"]
    tried = subprocess.run([*words, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"{TEMPLATES} is not there, and cannot be mounted: {tried.stderr.strip()}")
    return words


@pytest.fixture
def hook() -> Iterator[HookSink]:
    sink = HookSink()
    with running(sink):
        yield sink


@pytest.fixture
def alertmanager(tmp_path: Path, hook: HookSink) -> Iterator[str]:
    program = str(UNPACKED) if UNPACKED.exists() else shutil.which(NAME)
    if program is None:
        pytest.skip(f"{NAME} is not installed; install it by: scripts/bootstrap clients")
    config, address = tmp_path / "alertmanager.yml", f"127.0.0.1:{choose_port()}"
    config.write_text(CONFIG.format(url=hook.url))
    options = {"config.file": config, "storage.path": tmp_path, "web.listen-address": address}
    argv = [program, "--cluster.listen-address=", *(f"--{name}={value}" for name, value in options.items())]
    if UNPACKED.exists() and not TEMPLATES.exists():
        argv = [*beside_its_templates(), *argv]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log)
    try:
        until(lambda: answers(address) or process.poll() is not None, "Alertmanager answers")
        assert process.poll() is None, (tmp_path / "log").read_text()[-2000:]
        yield f"http://{address}/api/v2/alerts"
    finally:
        process.kill()
        process.wait()


def answers(address: str) -> bool:
    try:
        return bool(get(f"http://{address}/api/v2/status"))
    except OSError:
        return False


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=HANG) as answer:
        return json.loads(answer.read())


def test_alertmanager_takes_an_alarm_once_and_its_end(alertmanager: str, hook: HookSink) -> None:
    rules = Rules(receivers={"am": Receiver(webhook=alertmanager, form="alertmanager")}, rules=[])
    clock = SystemClock()
    post, now = poster(rules, "mid.", load().conditions, clock), clock.now_us()
    note = AlertNotification(
        phase="SENDING",
        receiver="am",
        condition="receiveOverrun",
        source="receive/0007",
        number=1,
        since=now - 600 * SECOND,
        severity="CRITICAL",
        text="312 heaps/s dropped",
        time=now,
        origin="test",
    )

    def send(one: AlertNotification) -> None:
        attempt = post("am", one)
        until(lambda: attempt.error is not None, "Alertmanager has answered")
        assert attempt.error == ""

    for _ in range(3):  # as after kills
        send(note)
    (known,) = get(alertmanager)
    assert known["fingerprint"] == fingerprint(labels("mid.", note))
    assert known["startsAt"].startswith(utc_text(note.since)[:19])
    until(lambda: hook.requests, "its receiver is told")
    send(replace(note, phase="ENDING", time=SystemClock().now_us(), text="over"))
    until(lambda: [body["status"] for _, body in hook.requests][-1] == "resolved", "its receiver is told of the end")
    states = [body["status"] for _, body in hook.requests]
    assert states == ["firing", "resolved"], "what came again was no other alert"
    ours = json.loads(request_of("mid.", "webhook", note, None))
    assert ours.keys() == hook.requests[0][1].keys(), "our own web hook has the same form"
    assert ours["alerts"][0].keys() == hook.requests[0][1]["alerts"][0].keys()
    assert not get(alertmanager)
