"""The hot path accepts and refuses what plain JSON Schema does, and gives the same numbers."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from facade.kernel.codec.decode import Reason
from facade.kernel.icd.load import load
from facade.kernel.outcome import RecordRejected
from facade.sdp.columns import ColumnDecoder
from tests.property.test_codec_differential import (
    DECODERS,
    JUNK,
    Leaf,
    damaged,
    edges,
    full,
    known_part,
    positions,
    rendered,
    valid,
)
from tests.support.examples import examples
from tests.support.reference_codec import JsonObject, as_readers_take_it, parse_reference

SCHEMA = load().messages["heap"]
DECODER = ColumnDecoder("heap", SCHEMA)
VALIDATOR = Draft202012Validator(as_readers_take_it(SCHEMA))
FEW = settings(
    max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def expected(data: bytes) -> dict[str, Any] | None:
    """Return the document if the reference accepts it; a repeated key is nobody's case."""
    try:
        document = parse_reference(data)
    except ValueError:
        # A decoder skips what the schema does not know, with numbers and bytes that no value may have.
        if not all(decoder.decode([data]).items for decoder in DECODERS["heap"]):
            return None
        document = parse_reference(known_part(SCHEMA, data))
    return document if VALIDATOR.is_valid(document) else None


def agree(values: list[bytes]) -> None:
    table = DECODER.decode(values)
    wanted = [expected(value) for value in values]
    assert table.index.tolist() == [i for i, document in enumerate(wanted) if document is not None]
    assert list(table.unused) == [i for i, document in enumerate(wanted) if document is None]
    good = [document for document in wanted if document is not None]
    for name, column in table.columns.items():
        assert column.tolist() == [document[name] for document in good]
    for entry in table.unused.values():
        assert isinstance(entry, RecordRejected)
        assert entry.reason in Reason
        assert entry.path.startswith("$")


def repeats_a_key(data: bytes) -> bool:
    try:
        document = parse_reference(data)
    except ValueError:
        return False
    return isinstance(document, JsonObject) and bool(document.repeated)


@FEW
@given(data=st.data())
def test_both_agree_about_batches_of_good_and_damaged_documents(data: st.DataObject) -> None:
    """Any mixture, in any order, the good ones' numbers to the last bit."""
    one = st.one_of(valid(SCHEMA).map(rendered), damaged(SCHEMA)).map(str.encode)
    values = data.draw(st.lists(one, min_size=1, max_size=6))
    agree([value for value in values if value and not repeats_a_key(value)])


@pytest.mark.parametrize(
    "extra", ["", "3.0", "3e0", "3.5", "1e3", "-0", "-0.0", "9007199254740992", "9007199254740993"]
)
def test_both_agree_about_every_odd_value_in_every_place(extra: str) -> None:
    texts = [extra] if extra else [*JUNK, *(value.text for value in edges(SCHEMA))]
    values = []
    for place in range(len(positions(full(SCHEMA)))):
        tree = full(SCHEMA)
        node, index = positions(tree)[place]
        key, _ = node.entries[index]
        for text in dict.fromkeys(texts):
            node.entries[index] = (key, Leaf(text))
            values.append(rendered(tree).encode())
    agree(values)
    for value in values:
        agree([value])


@pytest.mark.parametrize("unknown", ["null", "1e999", '"\\ud800"', '{"node": 7}'])
def test_both_leave_out_a_field_that_the_schema_does_not_know(unknown: str) -> None:
    good = rendered(full(SCHEMA))
    agree([good.encode(), f'{{"of a later release": {unknown}, {good[1:]}'.encode()])
