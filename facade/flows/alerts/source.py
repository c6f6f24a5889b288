"""Alerts of an SDP component: with sequence numbers, the begin of each condition, and confirmation by the bus.

See `AlertSource` for an example.
"""

import threading
from collections.abc import Mapping, Sequence
from typing import Literal

from facade.flows.alerts.flow import LARGEST
from facade.flows.alerts.messages import PACKETS, Alert, alert_record, decode_alert
from facade.flows.alerts.packets import PacketCodec, PacketContent
from facade.kernel import tracing
from facade.kernel.bus.kafka.opening import CONFIRMED_WITHIN, OwnBus
from facade.kernel.bus.port import Record, Writer
from facade.kernel.clock import Clock, SystemClock, Time
from facade.kernel.icd.model import Icd
from facade.kernel.outcome import RecordRejected
from facade.kernel.severities import Severity


class AlertSource(OwnBus):
    """Raises and clears the alerts of one source. Several threads may use it.

    A source with a codec sends packets only, because alerts on two topics would overtake each other.

    Parameters
    ----------
    source
        Name of the component, down to the part that is concerned. Only one process may use it at a time.
    writer
        Writes the records; by default the writer of an own bus, see `OwnBus`.
    clock
        Clock of the times of alerts; by default the system's.
    timeout
        Longest wait until all in-sync replicas have an alert [s]. With None, alerts are queued, and the writer counts
        and logs those that fail.
    packets
        Makes packets, which may have attachments. By default alerts are sent without attachments.
    icd
        The interface; by default the shipped one.

    Examples
    --------
    >>> with AlertSource("receive/0007") as alerts:
    ...     raised = alerts.raise_alert("receiveOverrun", "ALARM", "expected no drops, got 312/s", {"dropped": 312.0})
    ...     cleared = alerts.clear("receiveOverrun", "no drops for 10 s")
    >>> raised.state, cleared.state
    ('ACTIVE', 'CLEARED')
    """

    def __init__(
        self,
        source: str,
        writer: Writer | None = None,
        clock: Clock | None = None,
        *,
        timeout: float | None = CONFIRMED_WITHIN,
        packets: PacketCodec | None = None,
        icd: Icd | None = None,
    ) -> None:
        self._writer = self._open(source) if writer is None else writer
        self._source, self._clock = source, clock or SystemClock()
        self._timeout, self._packets = timeout, packets
        self._lock = threading.Lock()
        self._sequence = 0
        self._active: dict[str, tuple[Time, Severity]] = {}
        """Begin [Unix us] and severity, by condition."""

    def raise_alert(
        self,
        condition: str,
        severity: Severity,
        text: str,
        values: Mapping[str, float] | None = None,
        *,
        with_attachments: Sequence[PacketContent] = (),
    ) -> Alert:
        """Report that a condition is active: newly, still, or with another severity.

        Parameters
        ----------
        condition
            Name of the condition, such as one of the ICD.
        severity
            INFO, WARNING, ALARM or CRITICAL.
        text
            The expected and the found value, for operators.
        values
            Measured values by name.
        with_attachments
            Images and other files; they need a source with `packets`.

        Returns
        -------
        Alert
            The alert that was sent.

        Raises
        ------
        ValueError
            The schema of alerts forbids it. Nothing was sent.
        BusError
            The bus has not confirmed the alert. Call again: an alert that comes twice does no harm.
        """
        with self._lock:
            now_us = self._clock.now_us()
            since = self._active[condition][0] if condition in self._active else now_us
            alert = self._alert(condition, severity, "ACTIVE", text, since, values)
            record = self._record(alert, with_attachments)
            self._active[condition] = (since, severity)
            self._send(alert, record)
            return alert

    def clear(self, condition: str, text: str, values: Mapping[str, float] | None = None) -> Alert:
        """Report that a condition has gone, also if an earlier run of the process may have raised it.

        Parameters
        ----------
        condition
            Name of the condition.
        text
            Why it is over, for operators.
        values
            Measured values by name.

        Returns
        -------
        Alert
            The alert that was sent, with the state CLEARED.

        Raises
        ------
        ValueError
            The schema of alerts forbids it. Nothing was sent.
        BusError
            The bus has not confirmed the alert. Call again.
        """
        with self._lock:
            now_us = self._clock.now_us()
            since, severity = self._active.get(condition, (now_us, "INFO"))
            alert = self._alert(condition, severity, "CLEARED", text, since, values)
            self._send(alert, self._record(alert, ()))
            self._active.pop(condition, None)
            return alert

    def _alert(
        self,
        condition: str,
        severity: Severity,
        state: Literal["ACTIVE", "CLEARED"],
        text: str,
        since: Time,
        values: Mapping[str, float] | None,
    ) -> Alert:
        return Alert(
            condition=condition,
            source=self._source,
            severity=severity,
            state=state,
            text=text,
            raised_at=since,
            sequence=self._sequence + 1,
            values=dict(values or {}),
            traceparent=dict(tracing.current()).get("traceparent", b"").decode("latin-1"),
        )

    def _record(self, alert: Alert, contents: Sequence[PacketContent]) -> Record:
        """Return the record of an alert. An alert that its reader would refuse is refused here."""
        if self._packets is not None:
            value = self._packets.encode(alert, contents)
            made = self._packets.alert(value, "0/0")
            if isinstance(made, RecordRejected):
                raise ValueError(f"alert {alert.condition!r:.110}: {made.path}: {made.detail}")
            return Record(topic=PACKETS, key=alert.source.encode(), value=value)
        if contents:
            raise ValueError("with_attachments: expected a source that was made with a PacketCodec, got one without")
        record = alert_record(alert)
        if isinstance(rejected := decode_alert(record.value), RecordRejected):
            raise ValueError(f"alert {alert.condition!r:.110}: {rejected.path}: {rejected.detail}")
        if (size := len(record.value or b"")) > LARGEST:
            raise ValueError(f"alert {alert.condition!r:.110}: expected at most {LARGEST} bytes, got {size}")
        return record

    def _send(self, alert: Alert, record: Record) -> None:
        expected = self._sequence + 1
        assert alert.sequence == expected, f"{self._source}: alert {alert.sequence} instead of {expected}: a false loss"
        self._sequence = alert.sequence  # also if it is lost, so that it shows as missing
        if self._timeout is None:
            self._writer.send(record)
        else:
            self._writer.send_durably(record, self._timeout)
