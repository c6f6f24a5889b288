"""The intake worker: takes packets and writes the small alert of each; see `facade.runtime.worker`."""

from collections.abc import Callable, Mapping, Sequence

from facade.bus.port import Record, TransactionalLog
from facade.bus.redrive import FIRST, FROM
from facade.clock import Clock
from facade.config import Settings
from facade.flows.alerts.messages import ALERTS, PACKET, PACKETS, decode_alert_or_action
from facade.flows.alerts.packets import PacketCodec
from facade.icd.model import Icd
from facade.outcome import USED, Outcome, Unused
from facade.runtime.worker import RecordBatching, RecordWorker


class Intake(RecordWorker):
    """One slot of the group that takes alert packets.

    Parameters
    ----------
    slot
        Name of the slot; each running worker has its own.

    Raises
    ------
    ConfigError
        The Avro library is not installed.
    """

    def __init__(
        self, log: TransactionalLog, icd: Icd, *, slot: str, clock: Clock, batching: RecordBatching | None = None
    ) -> None:
        self._codec = PacketCodec(icd)
        name = f"alerts-intake-{slot}"
        super().__init__(log, PACKETS, icd.topics[PACKETS], name=name, clock=clock, batching=batching)

    def convert(self, record: Record) -> Sequence[Record] | Unused:
        """Return the record of a packet's alert; its header says which packet it is of."""
        place = f"{record.partition}/{record.offset}"
        made = self._codec.alert(record.value, place)
        if isinstance(made, Unused):
            return made
        alert, text = made
        log = self._log.ranges()[record.topic, record.partition].log
        redriven = (header for header in record.headers if header[0] in (FROM, FIRST))
        headers = ((PACKET, f"{log}/{place}".encode()), *redriven)
        return [Record(topic=ALERTS, key=alert.condition.encode(), value=text, headers=headers)]


def trials(icd: Icd, settings: Settings) -> Mapping[str, Callable[[Record], Outcome]]:
    """Return the reading of one packet, alert or action; see `facade.manifest.Manifest.trials`."""
    codec = PacketCodec(icd)

    def packet(record: Record) -> Outcome:
        made = codec.alert(record.value, f"{record.partition}/{record.offset}")
        return made if isinstance(made, Unused) else USED

    def alert(record: Record) -> Outcome:
        made = decode_alert_or_action(record.value)
        return made if isinstance(made, Unused) else USED

    return {PACKETS: packet, ALERTS: alert}
