"""What a running system shows of the mirror beyond the ICD: records in the forms of ESS are such."""

from clients.conformance.flows import FlowChecks
from facade.bus.port import Record
from facade.flows.mirror.streaming import FORMS, STREAMING
from facade.icd.model import Icd

_IDENTIFIERS = frozenset(map(str.encode, FORMS))


def odd_flatbuffers(icd: Icd, records: list[Record]) -> list[tuple[Record, str]]:
    """Return the records that are no flatbuffer of a known form."""
    found = [(record, (record.value or b"")[4:8]) for record in records]
    what = f"expected one of {', '.join(FORMS)} as bytes 4 to 7"
    return [(record, f"{what}, got {name!r}") for record, name in found if name not in _IDENTIFIERS]


CHECKS = FlowChecks(records={STREAMING: odd_flatbuffers})
