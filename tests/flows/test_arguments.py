"""Arguments of commands: each schema accepts its example, and a refusal says where, what was expected, what came."""

import json
import re
from cProfile import Profile
from typing import Any

import pytest
from support.arguments import ADDRESS, TRANSACTION, example

from facade.flows.commands.arguments import LONGEST, Arguments
from facade.kernel.errors import ArgumentError
from facade.kernel.icd.load import load
from tests.support.telescope_arguments import telescope_arguments

ICD = load()
ARGUMENTS = Arguments(ICD)
TELESCOPES = telescope_arguments()
SCHEMAS = [(family, version) for family, versions in ICD.arguments.items() for version in versions]
OPEN = ("1.0", "1.1", "1.2", "2.0", "2.1")
PATTERN = "^txn-[a-z0-9]+-[0-9]{8}-[a-z0-9]+$"


def edited(family: str, version: str, path: str, value: Any) -> dict[str, Any]:
    """Change one place of an example; `path` has / between keys and indices, and ``...`` removes."""
    document = example(family, version)
    *parents, last = [int(step) if step.isdigit() else step for step in path.split("/")]
    part: Any = document
    for step in parents:
        part = part[step]
    if value is ...:
        del part[last]
    elif isinstance(part, list) and last == len(part):
        part.append(value)
    else:
        part[last] = value
    return document


def refusal(family: str, text: str) -> str:
    with pytest.raises(ArgumentError) as caught:
        ARGUMENTS.check(family, text)
    return str(caught.value)


def test_the_versions_are_those_that_the_real_device_accepts() -> None:
    """And scan 2.1, the receive addresses, and what only controllers order."""
    usual = ["0.4", "0.5", "1.0", "1.1", "1.2", "2.0"]
    assert {family: list(versions) for family, versions in ICD.arguments.items()} == {
        "assignres": usual,
        "releaseres": usual,
        "configure": usual,
        "scan": [*usual, "2.1"],
        "recvaddrs": ["0.4", "0.5"],
        "prepare": ["0.1"],
    }


def test_the_examples_of_the_schemas_are_arguments_of_each_version() -> None:
    found = []
    for family, version in SCHEMAS:
        schema = ICD.arguments[family][version]
        base, _, definition = schema.get("$ref", "").partition("#/$defs/")
        part = ICD.arguments[family][base or version].get("$defs", {}).get(definition, {})
        for one in part.get("examples", ()):
            document = {"interface": ADDRESS.format(family=family, version=version), **one}
            assert ARGUMENTS.check(family, json.dumps(document)).document == document
            found.append((family, version))
    assert found == [(family, version) for family, version in SCHEMAS if family not in ("recvaddrs", "prepare")]


def test_versions_whose_differences_are_not_known_are_not_given_out_as_versions_of_our_own() -> None:
    for family in ("assignres", "releaseres", "configure", "scan"):
        own, also = ICD.versions(family).split("; also accepted: ")
        assert own.split(", ") == ["0.4", "1.0", *(["2.1"] if family == "scan" else [])]
        assert also == "0.5 (checked as 0.4), 1.1, 1.2, 2.0 (checked as 1.0)"
    assert ICD.versions("recvaddrs") == "0.4, 0.5"


@pytest.mark.parametrize(("family", "version"), SCHEMAS)
def test_an_example_is_accepted(family: str, version: str) -> None:
    """The document comes out as it went in."""
    document = example(family, version)
    checked = ARGUMENTS.check(family, json.dumps(document))
    assert checked.document == document
    assert checked.interface == ADDRESS.format(family=family, version=version)
    assert checked.transaction_id == document.get("transaction_id")


@pytest.mark.parametrize("family", sorted(ICD.arguments))
def test_without_interface_it_is_the_oldest_version(family: str) -> None:
    """Controllers are told which one it was taken for."""
    document = example(family, next(iter(ICD.arguments[family])))
    interface = document.pop("interface")
    checked = ARGUMENTS.check(family, json.dumps(document))
    assert checked.interface == checked.document["interface"] == interface


@pytest.mark.parametrize(("family", "version"), SCHEMAS)
def test_only_new_versions_allow_more_keys(family: str, version: str) -> None:
    """At the top; receive addresses have no other keys than the names of scan types."""
    text = json.dumps(edited(family, version, "remark", {}))
    if version in OPEN or family == "recvaddrs":
        assert ARGUMENTS.check(family, text).document["remark"] == {}
    else:
        assert "$.remark: expected one of the keys interface, transaction_id, " in refusal(family, text)


@pytest.mark.parametrize("version", ["0.4", "0.5", "1.0", "2.0"])
@pytest.mark.parametrize(
    "place", ["execution_block", "execution_block/beams/0", "processing_blocks/0/script", "execution_block/fields/0"]
)
def test_only_new_versions_allow_more_keys_below(version: str, place: str) -> None:
    text = json.dumps(edited("assignres", version, f"{place}/remark", 1))
    if version in OPEN:
        ARGUMENTS.check("assignres", text)
    else:
        path = place.replace("/0", "[0]").replace("/", ".")
        assert f"$.{path}.remark: expected one of the keys " in refusal("assignres", text)


@pytest.mark.parametrize("version", ["0.4", "1.0"])
@pytest.mark.parametrize("key", ["resources", "execution_block", "processing_blocks"])
def test_any_part_of_an_assignment_is_enough(version: str, key: str) -> None:
    """Resources alone are added to those of an execution block that is there already."""
    document = example("assignres", version)
    ARGUMENTS.check("assignres", json.dumps({"interface": document["interface"], key: document[key]}))


TEXTS = [
    ("", "$: expected a JSON object, got an empty text"),
    (" \n", "$: expected a JSON object, got an empty text"),
    ("hello", "$: expected a JSON object, got 'hello' (Expecting value: line 1 column 1 (char 0))"),
    ('{"scan_id": 1', "$: expected a JSON object, got "),
    ("{'scan_id': 1}", "$: expected a JSON object, got "),
    ('{"scan_id": 1}{}', "Extra data"),
    ("[1]", "$: expected a JSON object, got [1]"),
    ("null", "$: expected a JSON object, got None"),
    ("17", "$: expected a JSON object, got 17"),
    ('{"scan_id": 1, "scan_id": 2}', "the key 'scan_id' is there more than once in one object"),
    ('{"scan_id": 1, "a": {"b": 1, "b": 1}}', "the key 'b' is there more than once in one object"),
    ('{"scan_id": NaN}', "$.scan_id: expected a finite number, got nan"),
    ('{"scan_id": -Infinity}', "$.scan_id: expected a finite number, got -inf"),
    ('{"scan_id": 1e999}', "$.scan_id: expected a finite number, got inf"),
    ('{"scan_id": 9223372036854775808}', "$.scan_id: expected an integer of at most 64 bits, got 9223372036854775808"),
    ('{"scan_id": ' + "9" * 5000 + "}", "$: expected a JSON object, got "),
    ('{"scan_id": "\\ud800"}', "$.scan_id: expected text of whole characters, got '\\ud800'"),
    ('{"a": [{"\\udfff": 1}]}', "$.a[0]: expected keys of whole characters, got '\\udfff'"),
    ("[" * 100_000, "$: expected a JSON object, got '[[["),
    ('{"a": ' * 100_000, "$: expected a JSON object, got "),
    ('{"a": ' * 65 + "1" + "}" * 65, "$: expected at most 64 levels, got more at $.a.a.a.a"),
    ("[" + " " * 1_000_000 + "]", "$: expected at most 1000000 characters, got 1000002"),
]


@pytest.mark.parametrize(("text", "expected"), TEXTS, ids=range(len(TEXTS)))
def test_a_text_that_cannot_be_handed_on_is_refused(text: str, expected: str) -> None:
    """Never with another error; and what came is shown, but not all of it."""
    message = refusal("scan", text)
    assert expected in message
    assert len(message) < 500


def test_the_longest_and_deepest_text_is_accepted() -> None:
    """The limits themselves are within."""
    document = {"interface": ADDRESS.format(family="scan", version="1.0"), "scan_id": 1, "a": "", "b": 0}
    for _ in range(62):
        document["b"] = {"c": document["b"]}
    text = json.dumps(document)
    text = text.replace('""', f'"{"x" * (1_000_000 - len(text))}"')
    assert len(text) == 1_000_000
    assert ARGUMENTS.check("scan", text).document["scan_id"] == 1


@pytest.mark.parametrize("family", sorted(ICD.arguments))
@pytest.mark.parametrize(
    "interface",
    ["", "0.4", "https://schema.skao.int/ska-sdp-scan/0.3", "https://schema.skao.int/ska-tmc-scan/2.0", 3, None, ["x"]],
)
def test_an_unknown_interface_is_refused_with_those_that_there_are(family: str, interface: object) -> None:
    """Every version is named."""
    message = refusal(family, json.dumps({**example(family, "0.4"), "interface": interface}))
    assert message.startswith("$.interface: expected one of https://schema.skao.int/ska-sdp-")
    assert all(ADDRESS.format(family=family, version=version) in message for version in ICD.arguments[family])
    assert message.endswith(f"got {interface!r}")


# family, version, path, value, what the refusal says
WRONG: list[tuple[str, str, str, Any, str]] = [
    ("scan", "0.4", "scan_id", ..., "$.scan_id: expected such a key, got none"),
    ("scan", "0.4", "scan_id", "17", "$.scan_id: expected an integer, got '17'"),
    ("scan", "2.1", "scan_id", 1.0, "$.scan_id: expected an integer, got 1.0"),
    ("scan", "2.1", "scan_id", True, "$.scan_id: expected an integer, got True"),
    ("scan", "0.4", "scan_id", 0, "$.scan_id: expected a number >= 1, got 0"),
    ("scan", "0.4", "scan_id", 2**53, "$.scan_id: expected a number <= 9007199254740991, got 9007199254740992"),
    ("scan", "2.1", "start_time", "tomorrow", "$.start_time: expected text of the form "),
    ("scan", "2.1", "start_time", "2026-11-21T10:15:00+02:00", "$.start_time: expected text of the form "),
    ("scan", "2.1", "duration", 0, "$.duration: expected a number > 0, got 0"),
    ("scan", "2.0", "transaction_id", "txn-1", f"$.transaction_id: expected text of the form {PATTERN}, got 'txn-1'"),
    ("scan", "2.0", "transaction_id", TRANSACTION + "\n", f"$.transaction_id: expected text of the form {PATTERN}"),
    ("scan", "2.0", "transaction_id", 3, "$.transaction_id: expected text, got 3"),
    ("configure", "0.4", "scan_type", ..., "$.scan_type: expected such a key, got none"),
    ("configure", "2.0", "scan_type", "", "$.scan_type: expected text of at least 1 character(s), got ''"),
    ("configure", "0.5", "new_scan_types/0/scan_type_id", ..., "$.new_scan_types[0].scan_type_id: expected such"),
    ("configure", "0.5", "new_scan_types/0/beams/vis0/x", 1, "$.new_scan_types[0].beams.vis0.x: expected one of the"),
    ("configure", "1.0", "new_scan_types", {}, "$.new_scan_types: expected a list, got {}"),
    (
        "configure",
        "1.0",
        "new_scan_types/1",
        {"scan_type_id": "new"},
        "$.new_scan_types[1].scan_type_id: expected an id of its own, got 'new', which is that of $.new_scan_types[0]",
    ),
    (
        "configure",
        "1.0",
        "new_scan_types/0/derive_from",
        "new",
        "$.new_scan_types[0].derive_from: expected a scan type that does not derive from this one, got 'new'",
    ),
    ("releaseres", "0.4", "resources", ..., "$.resources: expected such a key, got none"),
    ("releaseres", "2.0", "resources", {}, "$.resources: expected an object with at least 1 key(s), got {}"),
    ("releaseres", "2.0", "resources/receptors/0", 36, "$.resources.receptors[0]: expected text, got 36"),
    ("assignres", "0.4", "execution_block/eb_id", "eb", "$.execution_block.eb_id: expected text of the form ^eb-"),
    ("assignres", "0.4", "execution_block/beams", ..., "$.execution_block.beams: expected such a key, got none"),
    ("assignres", "0.4", "execution_block/beams", [], "$.execution_block.beams: expected a list of at least 1, got []"),
    (
        "assignres",
        "2.0",
        "execution_block/beams/0/function",
        "imaging",
        "$.execution_block.beams[0].function: expected one of 'visibilities', 'pulsar search', 'pulsar timing', 'vlbi',"
        " got 'imaging'",
    ),
    (
        "assignres",
        "1.0",
        "execution_block/scan_types/1/derive_from",
        "default",
        "$.execution_block.scan_types[1].derive_from: expected one of the scan types"
        " '.default', 'calibration:b', 'target:a', got 'default'",
    ),
    (
        "assignres",
        "1.0",
        "execution_block/scan_types/0/derive_from",
        "calibration:b",
        "$.execution_block.scan_types[0].derive_from: expected a scan type that does not derive from this one,"
        " got 'calibration:b'; $.execution_block.scan_types[1].derive_from: ",
    ),
    (
        "assignres",
        "1.2",
        "execution_block/scan_types/1/beams/vis9",
        {},
        "$.execution_block.scan_types[1].beams.vis9: expected one of the beams 'pss1', 'pst1', 'vis0', 'vlbi1',"
        " got 'vis9'",
    ),
    (
        "assignres",
        "0.4",
        "execution_block/channels/0/spectral_windows/0/freq_max",
        350,
        "$.execution_block.channels[0].spectral_windows[0].freq_max: expected number >= freq_min = 350000000.0,",
    ),
    (
        "assignres",
        "0.4",
        "execution_block/fields/0/phase_dir",
        example("assignres", "1.0")["execution_block"]["fields"][0]["phase_dir"],
        "$.execution_block.fields[0].phase_dir.ra: expected such a key, got none; $.execution_block.fields[0].phase",
    ),
    ("assignres", "2.0", "resources/receptors/3", "SKA001", "$.resources.receptors[3]: expected a receptor"),
    (
        "assignres",
        "2.0",
        "processing_blocks/0/pb_id",
        "PB 1",
        "$.processing_blocks[0].pb_id: expected text of the",
    ),
    (
        "assignres",
        "2.0",
        "processing_blocks/1/dependencies/0/pb_id",
        "pb-test-20261121-00009",
        "$.processing_blocks[1].dependencies[0].pb_id: expected another processing block of these"
        " ('pb-test-20261121-00001'), got 'pb-test-20261121-00009'",
    ),
    ("recvaddrs", "0.4", "target:a/vis0/port/0/1", 70000, "$['target:a'].vis0.port[0][1]: expected a number <= 65535"),
    ("recvaddrs", "0.5", "target:a/vis0/port/1/0", 0, "$['target:a'].vis0.port[1]: expected a channel > 0, which is"),
]


@pytest.mark.parametrize(("family", "version", "path", "value", "expected"), WRONG)
def test_a_wrong_argument_is_refused_with_its_key(
    family: str, version: str, path: str, value: Any, expected: str
) -> None:
    assert expected in refusal(family, json.dumps(edited(family, version, path, value)))


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("execution_block/beams", "beam_id"),
        ("execution_block/scan_types", "scan_type_id"),
        ("execution_block/channels", "channels_id"),
        ("execution_block/channels/0/spectral_windows", "spectral_window_id"),
        ("execution_block/polarisations", "polarisations_id"),
        ("execution_block/fields", "field_id"),
        ("processing_blocks", "pb_id"),
    ],
)
def test_two_entries_of_one_id_are_refused(path: str, key: str) -> None:
    entries: Any = example("assignres", "1.0")
    for step in path.split("/"):
        entries = entries[int(step) if step.isdigit() else step]
    document = edited("assignres", "1.0", f"{path}/{len(entries)}", entries[0])
    at = re.sub(r"/(\d+)", r"[\1]", path).replace("/", ".")
    assert f"$.{at}[{len(entries)}].{key}: expected an id of its own, got " in refusal(
        "assignres", json.dumps(document)
    )


def test_nothing_to_assign_is_refused() -> None:
    """With the keys of which one is needed."""
    expected = "$: expected at least one of the keys resources, execution_block, processing_blocks, got {"
    assert expected in refusal("assignres", "{}")


def test_several_mistakes_are_named_together_but_not_all_of_many() -> None:
    many = {"interface": ADDRESS.format(family="releaseres", version="0.4"), "resources": {"receptors": [1, 2]}}
    assert refusal("releaseres", json.dumps(many)).count("expected text, got") == 2
    many["resources"]["receptors"] = list(range(1000))  # type: ignore[index]
    message = refusal("releaseres", json.dumps(many))
    assert message.count("expected text, got") == 3
    assert message.endswith("; and more")
    with pytest.raises(ArgumentError) as refused:
        ARGUMENTS.check("releaseres", json.dumps(many))
    assert "; ".join(refused.value.faults) == message


def test_a_long_derivation_is_followed_once() -> None:
    """A thousand scan types that derive from each other in a row, and in a circle."""
    types = [{"scan_type_id": f"s{i}", "derive_from": f"s{i + 1}"} for i in range(1000)]
    document = {"interface": ADDRESS.format(family="configure", version="2.0"), "scan_type": "s0"}
    ARGUMENTS.check("configure", json.dumps({**document, "new_scan_types": types}))
    types[-1]["derive_from"] = "s990"
    message = refusal("configure", json.dumps({**document, "new_scan_types": types}))
    assert message.startswith("$.new_scan_types[990].derive_from: ")


@pytest.mark.parametrize(
    ("new", "wrong"),
    [
        ([("a", None), ("b", "a")], []),
        ([("a", "a")], ["a"]),
        ([("a", "b"), ("b", "a"), ("c", "a")], ["a", "b"]),
        ([("c", "a"), ("a", "b"), ("b", "a")], ["a", "b"]),
        ([("a", "elsewhere"), ("b", "elsewhere")], []),
    ],
)
def test_only_those_in_a_circle_are_named(new: list[tuple[str, str | None]], wrong: list[str]) -> None:
    """A scan type that leads into a circle is itself right."""
    types = [{"scan_type_id": name, **({"derive_from": base} if base else {})} for name, base in new]
    document = {"interface": ADDRESS.format(family="configure", version="2.0"), "scan_type": "a"}
    text = json.dumps({**document, "new_scan_types": types})
    if not wrong:
        ARGUMENTS.check("configure", text)
        return
    message = refusal("configure", text)
    names = [name for name, _ in new]
    assert [f"$.new_scan_types[{names.index(name)}]" in message for name in names] == [name in wrong for name in names]


def megabyte(family: str, version: str, entry: Any, *path: str | int) -> str:
    """Return an argument as long as may be, which has a list of equal entries at some place."""
    document = example(family, version)
    place = document
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = [entry] * (970_000 // (len(json.dumps(entry, separators=(",", ":"))) + 1))
    text = json.dumps(document, separators=(",", ":"))
    assert 900_000 < len(text) <= LONGEST
    return text


BLOCK = "execution_block"
WINDOW = {"spectral_window_id": "a", "count": 1, "start": 0, "freq_min": 2.0, "freq_max": 1.0}
BULKY = {
    "receptors": ("assignres", "0.4", "SKA001", "resources", "receptors"),
    "released": ("releaseres", "2.0", "SKA001", "resources", "receptors"),
    "beams": ("assignres", "1.2", {"beam_id": "a", "function": "visibilities"}, BLOCK, "beams"),
    "scan types": ("configure", "2.0", {"scan_type_id": "a", "derive_from": "b"}, "new_scan_types"),
    "windows": ("assignres", "0.5", WINDOW, BLOCK, "channels", 0, "spectral_windows"),
    "maps": ("assignres", "0.5", [0, 0], BLOCK, "channels", 0, "spectral_windows", 0, "link_map"),
    "ports": ("recvaddrs", "0.5", [0, 1], "target:a", "vis0", "port"),
    "numbers": ("assignres", "0.4", 1, "resources", "receptors"),
    "nothing": ("assignres", "0.4", {}, BLOCK, "beams"),
    "unknown": ("scan", "0.4", [], "unknown"),
}


@pytest.mark.parametrize("bulky", BULKY)
def test_a_megabyte_takes_little_work(bulky: str) -> None:
    """A caller waits for 0.5 s: nothing is done for a value in Python but to read it and to compare names."""
    text, profile = megabyte(*BULKY[bulky]), Profile()
    try:
        profile.runcall(ARGUMENTS.check, BULKY[bulky][0], text)
    except ArgumentError as error:
        message = str(error)
    else:
        message = ""
    assert sum(entry.callcount for entry in profile.getstats()) < 5 * len(text)
    assert len(message) < 1000
    assert bool(message) == (bulky != "maps")  # a map may say the same twice
    if bulky in ("numbers", "nothing"):
        assert message.endswith("$: in a text of more than 10000 characters only the first mistake is looked for")


@pytest.mark.parametrize("telescope", TELESCOPES)
def test_an_argument_of_a_whole_telescope_is_accepted(telescope: str) -> None:
    """Each search beam has a field of its own, a mosaic has 2,000 pointings, and every channel has its link."""
    document = TELESCOPES[telescope]
    assert ARGUMENTS.check("assignres", json.dumps(document)).document == document


@pytest.mark.parametrize("telescope", TELESCOPES)
def test_one_mistake_in_an_argument_of_a_whole_telescope_is_named(telescope: str) -> None:
    document = json.loads(json.dumps(TELESCOPES[telescope]))
    del document["execution_block"]["fields"][-1]["phase_dir"]["attrs"]["c2"]
    count = len(document["execution_block"]["fields"])
    expected = f"$.execution_block.fields[{count - 1}].phase_dir.attrs.c2: expected such a key, got none"
    assert refusal("assignres", json.dumps(document)).startswith(expected)


@pytest.mark.parametrize("wrong", [1.0, 7.5, True, "1"])
def test_a_count_is_written_without_a_fraction(wrong: Any) -> None:
    message = refusal("assignres", json.dumps(edited("assignres", "0.4", "resources/receive_nodes", wrong)))
    assert message == f"$.resources.receive_nodes: expected an integer, got {wrong!r}"
