"""The messages to people elsewhere, and how they are sent: mail by SMTP, and web hooks in the forms of Alertmanager.

A message that is sent again has the same content and the same id, by which its receiver can drop the second one. A mail
has the id as its ``Message-ID``. Alertmanager knows an alert by its labels, and an occurrence by ``startsAt`` as well.
Other web hooks have the same fields, the fingerprint of these labels, and the id in the header ``Idempotency-Key``.
"""

import hashlib
import json
import smtplib
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.headerregistry import HeaderRegistry
from email.message import EmailMessage
from email.policy import EmailPolicy
from email.utils import format_datetime
from typing import Any, Protocol

from facade.flows.alerts.messages import ENDING, AlertNotification
from facade.flows.alerts.notify_rules import ALERTMANAGER, MailServer, Receiver, Rules
from facade.kernel.clock import DAY, Clock, as_seconds, utc_seconds, utc_text
from facade.kernel.http_request import send_request
from facade.kernel.icd.model import Condition
from facade.kernel.printable import excerpt, printable

__all__ = ["Attempt", "Post", "Sending", "labels", "mail_of", "message_id", "poster", "request_of"]

_PATIENCE = 10.0
"""Longest wait for each answer of a mail server, and for the whole answer of a web hook [s]."""
_LASTS = 30 * DAY
"""Alertmanager ends an alert after this time by itself, in case the facade is no longer there to end it."""
_HEADERS = HeaderRegistry()
_HEADERS.registry |= dict.fromkeys(("in-reply-to", "references"), _HEADERS.registry["message-id"])
_POLICY = EmailPolicy(header_factory=_HEADERS)
"""Keeps ids whole, because the default policy splits the id of a long host into encoded words in these headers."""
_FNV_BASIS, _FNV_PRIME = 14695981039346656037, 1099511628211


class Attempt(Protocol):
    """One attempt to send a message."""

    @property
    def error(self) -> str | None:
        """Return why it has failed; empty: the receiver has taken the message; None: it is under way."""

    def cut(self) -> None:
        """End it, as it has taken too long."""


Post = Callable[[str, AlertNotification], Attempt]
"""Begins to send a message to a receiver."""


def message_id(deployment: str, one: AlertNotification, number: int | None = None) -> str:
    """Return the id of a message; with `number`, of the earlier message with this number about the same alarm."""
    what = "end" if one.phase == ENDING and number is None else one.number if number is None else number
    parts = (deployment, one.receiver, one.condition, one.source, one.since, what)
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def labels(deployment: str, one: AlertNotification) -> dict[str, str]:
    """Return what identifies an alert for Alertmanager; the severity is the first one that was told."""
    return {
        "alertname": one.condition,
        "deployment": deployment.rstrip(".") or "sdp",
        "severity": one.severity.lower(),
        "source": printable(one.source),
    }


def fingerprint(of: Mapping[str, str]) -> str:
    """Return the fingerprint of labels, as Alertmanager and Prometheus make it: FNV-1a with 64 bits."""
    found = _FNV_BASIS
    for name, value in sorted(of.items()):
        for byte in name.encode() + b"\xff" + value.encode() + b"\xff":
            found = (found ^ byte) * _FNV_PRIME % 2**64
    return f"{found:016x}"


def _alert(deployment: str, one: AlertNotification, condition: Condition | None) -> dict[str, Any]:
    about = {"summary": printable(one.text), "number": str(one.number)}
    if condition is not None:
        about |= {"title": condition.label, "description": condition.description, "response": condition.response}
    ends = one.time if one.phase == ENDING else one.time + _LASTS
    times = {"startsAt": utc_text(one.since), "endsAt": utc_text(ends)}
    return {"labels": labels(deployment, one), "annotations": about, **times}


def request_of(deployment: str, form: str, one: AlertNotification, condition: Condition | None) -> bytes:
    """Return the body for a web hook: an alert for Alertmanager, or the message that it sends to its own receivers."""
    alert = _alert(deployment, one, condition)
    if form == ALERTMANAGER:
        return json.dumps([alert]).encode()
    status = "resolved" if one.phase == ENDING else "firing"
    about = {"commonLabels": alert["labels"], "commonAnnotations": alert["annotations"], "externalURL": ""}
    more = {"status": status, "generatorURL": "", "fingerprint": fingerprint(alert["labels"])}
    if one.phase != ENDING:
        alert["endsAt"] = "0001-01-01T00:00:00Z"  # so Alertmanager says that there is no end yet
    whole = {
        "version": "4",
        "groupKey": f"{{}}:{json.dumps(alert['labels'])}",
        "truncatedAlerts": 0,
        "status": status,
        "receiver": one.receiver,
        "groupLabels": alert["labels"],
        **about,
        "alerts": [{**alert, **more}],
    }
    return json.dumps(whole).encode()


def mail_of(
    deployment: str, server: MailServer, to: str, one: AlertNotification, condition: Condition | None
) -> EmailMessage:
    """Return a mail."""
    mail, host = EmailMessage(_POLICY), server.sender.rpartition("@")[2]
    place = printable(f"{one.condition} at {one.source}")
    state = "over" if one.phase == ENDING else "not acknowledged" + f", told {one.number} times" * (one.number > 1)
    mail["From"], mail["To"] = server.sender, to
    mail["Subject"] = f"[{labels(deployment, one)['deployment']}] {one.severity} {place}: {state}"
    mail["Date"] = format_datetime(datetime.fromtimestamp(as_seconds(one.time), UTC))
    mail["Message-ID"] = f"<{message_id(deployment, one)}@{host}>"
    if one.phase == ENDING or one.number > 1:
        mail["In-Reply-To"] = mail["References"] = f"<{message_id(deployment, one, 1)}@{host}>"
    lines = [printable(one.text), "", f"It has waited for a person since {utc_seconds(one.since)}."]
    if condition is not None:
        lines += ["", f"{condition.label}: {condition.description}", f"Response: {condition.response}"]
    if one.phase != ENDING:
        lines += ["", f"Acknowledge it with: sdp-facade alerts ack {printable(one.condition)}@{printable(one.source)}"]
    mail.set_content("\n".join(lines) + "\n")
    return mail


class Sending:
    """An attempt in a thread of its own, which ends with the process."""

    def __init__(self, send: Callable[["Sending"], None]) -> None:
        self.error: str | None = None
        self.connection: Any = None
        """What has the socket, once there is one."""
        threading.Thread(target=self._run, args=[send], name="notify", daemon=True).start()

    def cut(self) -> None:
        """Close the socket, so that the thread ends: a mail server that answers by single bytes never times out."""
        if (found := getattr(self.connection, "sock", None)) is not None:
            with suppress(OSError):
                found.shutdown(socket.SHUT_RDWR)

    def _run(self, send: Callable[["Sending"], None]) -> None:
        try:
            send(self)
        except smtplib.SMTPResponseException as error:
            self.error = excerpt(f"{error.smtp_code} {_text(error.smtp_error)}")
        except smtplib.SMTPRecipientsRefused as error:
            refused = (f"{name}: {code} {_text(said)}" for name, (code, said) in error.recipients.items())
            self.error = excerpt("; ".join(refused))
        except Exception as error:  # whatever a receiver answers must not end the process
            self.error = excerpt(f"{type(error).__name__}: {error}")
        else:
            self.error = ""


def _text(said: bytes | str) -> str:
    return said.decode("utf-8", "replace") if isinstance(said, bytes) else said


def poster(rules: Rules, deployment: str, conditions: Mapping[str, Condition], clock: Clock) -> Post:
    """Return a function that sends a message by mail or web hook."""

    def post(name: str, one: AlertNotification) -> Sending:
        receiver, condition = rules.receivers[name], conditions.get(one.condition)
        if receiver.mail:
            assert rules.mail is not None, f"receiver {name} gets mail, and there is no server"
            server, mail = rules.mail, mail_of(deployment, rules.mail, receiver.mail, one, condition)
            return Sending(lambda sending: _send_mail(sending, server, mail))
        body = request_of(deployment, receiver.form, one, condition)
        return Sending(lambda _: _request(receiver, body, message_id(deployment, one), clock))

    return post


class _MailClient(smtplib.SMTP):
    """A client that can be cut while its constructor waits for the greeting of the server."""

    def __init__(self, sending: Sending, *args: Any, **more: Any) -> None:
        sending.connection = self
        super().__init__(*args, **more)


class _MailClientOverTls(_MailClient, smtplib.SMTP_SSL):
    pass


def _send_mail(sending: Sending, server: MailServer, mail: EmailMessage) -> None:
    host, _, port = server.server.rpartition(":")
    context = ssl.create_default_context()
    if server.tls == "tls":
        client: _MailClient = _MailClientOverTls(sending, host, int(port), timeout=_PATIENCE, context=context)
    else:
        client = _MailClient(sending, host, int(port), timeout=_PATIENCE)
    try:
        if server.tls == "starttls":
            client.starttls(context=context)
        if server.password is not None:
            client.login(server.user, server.password.read())
        client.send_message(mail)
        with suppress(smtplib.SMTPException):
            client.quit()
    finally:
        client.close()


def _request(receiver: Receiver, body: bytes, id: str, clock: Clock) -> None:
    headers = {"Content-Type": "application/json", "Idempotency-Key": id, "User-Agent": "sdp-facade"}
    if receiver.token is not None:
        headers["Authorization"] = f"Bearer {receiver.token.read()}"
    status, reason, said = send_request(
        *("POST", receiver.webhook, body, headers), within=_PATIENCE, largest=500, clock=clock
    )
    if not 200 <= status < 300:
        raise OSError(f"expected a status of 200 to 299, got {status} {reason}: {said.decode('utf-8', 'replace')}")
