"""Requested faults of the reference controller."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from facade.flows.commands.messages import ACKS, AckMessage, ack_record
from facade.kernel.bus.port import Receipt, Record, Writer
from facade.kernel.errors import ConfigError

KINDS = {
    "reject": "it is refused",
    "fail": "it fails in the middle, and a subarray is left in FAULT",
    "hang": "it never ends unless it is aborted",
    "fail-block": "a processing block of the subarray fails, and the command does not",
    "slow": "it takes ten times as long",
    "crash-before": "the process dies before the effect, the first time that the command is executed",
    "crash-after": "the same after the effect, before it is acknowledged",
    "duplicate-acks": "each acknowledgement is written twice",
    "late-acks": "the outcome is acknowledged two seconds after the deadline",
    "no-acks": "it is executed and the state reported, but nothing is acknowledged",
    "wrong-ids": "the acknowledgements carry an id that nobody knows",
}
"""The available faults, with their effect on a command."""


@dataclass(frozen=True, slots=True)
class ControllerFault:
    """A fault of some commands."""

    kind: str
    command: str = ""
    """Empty: every command."""
    probability: float = 1.0

    @classmethod
    def parse(cls, text: str) -> "ControllerFault":
        """Parse ``KIND[:COMMAND[:PROBABILITY]]``."""
        kind, _, rest = text.partition(":")
        command, _, probability = rest.partition(":")
        if kind not in KINDS:
            raise ConfigError(f"fault: expected one of {', '.join(KINDS)}, got {text!r}")
        try:
            fault = cls(kind, command, float(probability or 1.0))
        except ValueError as error:
            raise ConfigError(
                f"fault: expected KIND:COMMAND:PROBABILITY, such as fail:Scan:0.1; got {text!r}"
            ) from error
        if not 0 <= fault.probability <= 1:
            raise ConfigError(f"fault: expected a probability from 0 to 1, got {text!r}")
        return fault

    def strikes(self, seed: int, command_id: str, command: str) -> bool:
        """Return whether it happens to a command: the same result each time, also after a restart."""
        if self.command not in ("", command):
            return False
        digest = hashlib.sha256(f"{seed}/{self.kind}/{command_id}".encode()).digest()
        return int.from_bytes(digest[:6]) < self.probability * 2**48


class FaultyWriter:
    """Writes acknowledgements as a faulty controller does.

    Parameters
    ----------
    faults_of
        Returns the kinds of faults of a command, by its id and name.
    """

    def __init__(self, writer: Writer, faults_of: Callable[[str, str], set[str]]) -> None:
        self._writer = writer
        self._faults_of = faults_of

    def send(self, record: Record) -> None:
        """Queue a record with its faults."""
        for changed in self._changed(record):
            self._writer.send(changed)

    def post(self, records: Sequence[Record]) -> Receipt:
        """Queue records with their faults."""
        return self._writer.post([changed for record in records for changed in self._changed(record)])

    def send_durably(self, record: Record, timeout: float) -> None:
        """Write a record with its faults."""
        for changed in self._changed(record):
            self._writer.send_durably(changed, timeout)

    def send_all_durably(self, records: Sequence[Record], timeout: float) -> None:
        """Write records with their faults."""
        self._writer.send_all_durably([changed for record in records for changed in self._changed(record)], timeout)

    def close(self, timeout: float) -> None:
        """Wait for queued records."""
        self._writer.close(timeout)

    def _changed(self, record: Record) -> list[Record]:
        if record.topic != ACKS:
            return [record]
        ack = msgspec.json.decode(record.value or b"", type=AckMessage)
        faults = self._faults_of(ack.id, ack.command)
        if "no-acks" in faults:
            return []
        if "wrong-ids" in faults:
            record = ack_record(msgspec.structs.replace(ack, id=f"{ack.id}-wrong"), record.headers)
        return [record, record] if "duplicate-acks" in faults else [record]
