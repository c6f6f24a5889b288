"""Loading: every wrong edit of a good interface is refused with its file and key."""

import json
import shutil
import tomllib
from pathlib import Path

import jsonschema
import msgspec
import pytest

from facade.kernel.errors import IcdError
from facade.kernel.icd.expand import account_attribute
from facade.kernel.icd.load import check, inspect, load, read
from facade.kernel.icd.model import Attribute
from facade.kernel.icd.topic_model import Limits
from facade.kernel.icd.units import UNITS, unit_of
from facade.kernel.manifest import Manifest
from facade.kernel.resources import resource

GOOD = {
    "icd/icd.toml": 'version = "1.2.3"\n',
    "icd/enums.toml": '[enums]\nColour = ["RED", "GREEN"]\n',
    "icd/conditions.toml": """
[conditions.tooHot]
label = "Too hot"
description = "It is too hot."
causes = ["The heating is on.", "It is summer."]
check = "Look at the thermometer."
response = "Open a window."
ends = "It clears when it is cool."
priority = "HIGH"
""",
    "icd/topics.toml": """
[roles.ingest]
side = "facade"
description = "Device server."

[roles.subarray]
side = "facade"
description = "Device server."

[topics."heaps"]
description = "Heaps."
message = "heap"
key = "node"
writers = ["subarray"]
readers = ["ingest"]
partitions = 2
cleanup = "delete"
retention = 3600.0
timestamp = "LogAppendTime"
qos = "bulk"

[topics."sums"]
description = "Sums."
message = "sum"
also = ["watermark"]
key = "node"
writers = ["subarray"]
readers = ["ingest"]
partitions = 2
cleanup = "delete"
retention = 3600.0
timestamp = "LogAppendTime"
qos = "telemetry"

[topics."heaps".window]
summary = "sums"
length = 1.0
lateness = 10.0
ahead = 5.0
disorder = 0.25
time = "time"
group = "node"
groups = "node"
sequence = "seq"
epoch = "scan_id"
"""
    + "".join(
        f"""
[topics."{name}"]
description = "Of the command path."
message = "{message}"
key = "device"
writers = ["subarray"]
readers = ["ingest"]
partitions = 1
cleanup = "delete"
retention = 60.0
timestamp = "LogAppendTime"
qos = "command"
"""
        for name, message in [("commands", "command"), ("command-acks", "command-ack"), ("heartbeats", "heartbeat")]
    )
    + """
[topics."state"]
description = "States."
message = "state"
key = "device/attribute"
writers = ["subarray"]
readers = ["ingest"]
partitions = 1
cleanup = "compact"
qos = "state"
""",
    "icd/Node.toml": """
name = "Node"
description = "A node."
device = "a/b/{node:04d}"
instance = "ingest-{rack:02d}"
sampling = { shortest = 1.0, longest = 10.0 }
stale_after = 3.0

[[attributes]]
name = "heapRate"
type = "DevDouble"
label = "Rate"
description = "Heaps per second."
source = { topic = "heaps", rule = "rate" }
sampling = { shortest = 0.5 }
limits = { max_alarm = 9.0 }

[[attributes]]
name = "colour"
type = "DevEnum"
enum = "Colour"
label = "Colour"
description = "Its colour."
access = "READ_WRITE"
""",
    "icd/Subarray.toml": """
name = "Subarray"
description = "A subarray."
device = "a/subarray/{subarray:02d}"
instance = "subarray"
sampling = { shortest = 0.0, longest = 10.0 }
stale_after = 0.0

[[attributes]]
name = "obsState"
type = "DevEnum"
enum = "Colour"
label = "State"
description = "Its state."
reported = true
initial = "RED"

[[commands]]
name = "Scan"
description = "Scans."
argument = "scan"
state = ["ON"]
obs_state = ["RED"]
targets = ["GREEN"]
repeatable = false
start_within = 2.0
deadline = 10.0
ceiling = 60.0

[[queries]]
name = "GetCommand"
description = "Gives a command."
argument = "DevString"
argument_description = "Its id."
result = "DevString"
result_description = "JSON."
""",
    "commands/scan-0.4.schema.json": """{
  "$id": "https://schema.skao.int/ska-sdp-scan/0.4",
  "title": "Scan", "description": "Which scan.", "type": "object", "required": ["scan_id"],
  "properties": {
    "interface": {"const": "https://schema.skao.int/ska-sdp-scan/0.4", "description": "This schema."},
    "scan_id": {"type": "integer", "minimum": 1, "description": "Number."}
  }
}""",
    "messages/heap.schema.json": """{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "$id": "https://example.org/heap/1",
  "description": "A heap.", "type": "object", "additionalProperties": false,
  "required": ["schema", "node", "scan_id", "seq", "time"],
  "properties": {
    "schema": {"const": "heap/1", "description": "Version."},
    "node": {"type": "integer", "minimum": 0, "maximum": 9, "description": "Node."},
    "scan_id": {"type": "integer", "minimum": 0, "maximum": 9, "description": "Scan."},
    "seq": {"type": "integer", "minimum": 0, "maximum": 9, "description": "Number."},
    "time": {"type": "integer", "minimum": 0, "maximum": 9, "x-unit": "us", "description": "Time."}
  }
}""",
    "messages/watermark.schema.json": (resource("schemas") / "messages/watermark.schema.json").read_text(),
    "messages/sum.schema.json": """{
  "$id": "https://example.org/sum/1",
  "description": "A sum.", "type": "object", "additionalProperties": false,
  "required": ["schema", "worker", "partition", "node", "partials"],
  "properties": {
    "schema": {"const": "sum/1", "description": "Version."},
    "worker": {"type": "string", "maxLength": 9, "description": "Worker."},
    "partition": {"type": "integer", "minimum": 0, "maximum": 9, "description": "Partition."},
    "node": {"type": "integer", "minimum": 0, "maximum": 9, "description": "Node."},
    "partials": {"type": "array", "items": {"type": "string"}, "description": "Sums."}
  }
}""",
    **{
        f"messages/{name}.schema.json": f"""{{
  "$id": "https://example.org/{name}/1",
  "description": "One of them.", "type": "object", "additionalProperties": false, "required": ["schema"],
  "properties": {{"schema": {{"const": "{name}/1", "description": "Version."}}}}
}}"""
        for name in ("command", "command-ack", "heartbeat", "state")
    },
}

NODE, TOPICS, HEAP = "icd/Node.toml", "icd/topics.toml", "messages/heap.schema.json"
SUBARRAY, SCAN = "icd/Subarray.toml", "commands/scan-0.4.schema.json"

# file, text that is there, text instead, what the message must contain
WRONG = [
    (NODE, "shortest = 0.5", "shortest = -1", "sampling.shortest: expected a finite number >= 0, got -1"),
    (NODE, "shortest = 0.5", "shortest = nan", "sampling.shortest: expected a finite number >= 0, got nan"),
    (NODE, "shortest = 0.5", 'shortest = "x"', "sampling.shortest: expected a finite number >= 0, got 'x'"),
    (NODE, "shortest = 0.5", "shortes = 0.5", "sampling.shortes: expected one of the keys shortest, longest"),
    (NODE, 'rule = "rate"', 'rule = "avrage"', "source.rule: expected one of 'count', 'rate'"),
    (NODE, 'rule = "rate"', 'rule = "avrage"', "got 'avrage'"),
    (NODE, 'label = "Rate"\n', "", "label: expected text, got no such key"),
    (NODE, 'label = "Rate"', "label = 3", "label: expected text, got 3"),
    (NODE, 'name = "colour"', "nam = 1", "attributes[1].name: expected text, got no such key"),
    (NODE, "max_alarm = 9.0", "max_alarm = true", "limits.max_alarm: expected a finite number, got True"),
    (
        NODE,
        "stale_after = 3.0",
        "stale_after = 2024-01-01",
        "stale_after: expected a finite number >= 0, got datetime.date",
    ),
    (NODE, "sampling = { shortest = 1.0, longest = 10.0 }", "sampling = 1", "sampling: expected a table, got 1"),
    (NODE, 'name = "Node"', 'name = "Nod"', "name: expected the file's own name 'Node', got 'Nod'"),
    (NODE, 'description = "A node."', "description = ", "expected TOML, got a syntax error: Invalid value (at line 3"),
    (NODE, 'topic = "heaps"', 'topic = "heap"', "source.topic: expected one of ['command-acks', "),
    ("icd/icd.toml", '"1.2.3"', '"1.2"', "icd.toml: version: expected MAJOR.MINOR.PATCH, got '1.2'"),
    ("icd/icd.toml", "version", "versions", "icd.toml: version: expected text, got no such key"),
    ("icd/enums.toml", '"GREEN"', "7", "enums.toml: enums[Colour][1]: expected text, got 7"),
    ("icd/conditions.toml", '"HIGH"', '"URGENT"', "priority: expected one of 'LOW', 'MEDIUM', 'HIGH', 'HIGHEST'"),
    ("icd/conditions.toml", "a window.", "a window", "response: expected text"),
    (TOPICS, "partitions = 2", "partitions = 2.5", "partitions: expected integer >= 1, got 2.5"),
    (TOPICS, "length = 1.0", "length = []", "window.length: expected number from 1 to 86400, got []"),
    (TOPICS, "partitions = 2", "partitions = 0", "topics[heaps].partitions: expected integer >= 1, got 0"),
    (TOPICS, "disorder = 0.25", "disorder = -1.0", "window.disorder: expected number from 0 to 86400, got -1.0"),
    (TOPICS, "disorder = 0.25", "disorder = inf", "window.disorder: expected number from 0 to 86400, got inf"),
    (TOPICS, '"Heaps."', '"Heaps"', "topics[heaps].description: expected text that ends with a full stop, got 'Heaps'"),
    (NODE, 'label = "Rate"', 'label = " "', "attributes[heapRate].label: expected text, got ' '"),
    (NODE, "max_alarm = 9.0", "max_alarm = nan", "limits.max_alarm: expected a finite number, got nan"),
    (SUBARRAY, 'name = "Scan"', 'name = "scan"', "commands[scan].name: expected UpperCamelCase, got 'scan'"),
    (SUBARRAY, "start_within = 2.0", "start_within = 0", "start_within: expected a finite number > 0, got 0"),
    ("icd/conditions.toml", '"It is summer."', '"summer"', "causes[1]: expected text that ends with a full stop"),
    ("icd/conditions.toml", "priority", "on_delay = 9e9\npriority", "on_delay: expected 0 to 3600, got 9000000000.0"),
    (TOPICS, 'sequence = "seq"', 'sequence = "sq"', "window.sequence: expected a required integer field"),
    (TOPICS, '"delete"', '"forget"', "cleanup: expected one of 'delete', 'compact', got 'forget'"),
    (SUBARRAY, "repeatable = false", "", "repeatable: expected true or false, got no such key"),
    (SUBARRAY, "deadline = 10.0", "dedline = 10.0", "dedline: expected one of the keys name"),
    (SUBARRAY, 'state = ["ON"]', "state = 3", "state: expected a list of text, got 3"),
    (SUBARRAY, 'targets = ["GREEN"]', 'targets = ["BLUE"]', "targets: expected one of ['RED', 'GREEN']"),
    (
        SUBARRAY,
        "repeatable = false",
        'repeatable = false\nreports = "colour"',
        "reports: expected one of 'obsState', 'State', got 'colour'",
    ),
    (
        SUBARRAY,
        'argument = "DevString"',
        'argument = "DevFloat"',
        "argument: expected one of 'DevVoid', 'DevString', 'DevLong', 'DevLong64', got 'DevFloat'",
    ),
    (SUBARRAY, 'argument = "scan"', 'argument = "skan"', "argument: expected one of ['scan'], got"),
    (SUBARRAY, "ceiling = 60.0", "ceiling = inf", "ceiling: expected a finite number > 0, got inf"),
    (SUBARRAY, "reported = true", "", "attributes[obsState].initial: expected none, because the attribute is not"),
    (SCAN, '"Number."}', '"Number."', "scan-0.4.schema.json: expected JSON, got: "),
    (SCAN, "ska-sdp-scan/0.4", "ska-sdp-scan/0.5", "scan-0.4.schema.json: $id: expected 'https://schema.skao.int/"),
    (HEAP, '"Time."}', '"Time."', "heap.schema.json: expected JSON, got: "),
    (HEAP, '"description": "A heap."', '"type": "object"', "the key 'type' more than once"),
    (HEAP, '"minimum": 0', '"minimum": NaN', "heap.schema.json: expected JSON, got: NaN"),
    (HEAP, '"Scan."', '"Scan.", "x-unit": "ms"', "heap.schema.json: properties.scan_id.x-unit: expected one of"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in GOOD.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def edit(folder: Path, name: str, old: str, new: str) -> None:
    path = folder / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_a_good_interface_loads(folder: Path) -> None:
    icd = load(folder)
    assert icd.version == "1.2.3"
    assert [one.name for one in icd.classes["Node"].attributes] == ["heapRate", "colour"]
    assert icd.classes["Node"].attributes[0].sampling is not None
    assert icd.classes["Node"].attributes[0].sampling.longest == 10.0
    assert icd.topics["heaps"].window is not None
    assert icd.topics["heaps"].window.quantile_error is None
    assert icd.messages["heap"]["properties"]["node"]["maximum"] == 9
    assert icd.enums == {"Colour": ("RED", "GREEN")}
    assert [one.name for one in icd.classes["Subarray"].commands] == ["Scan"]
    assert icd.classes["Subarray"].commands[0].transitional is None
    assert [one.name for one in icd.classes["Subarray"].queries] == ["GetCommand"]
    assert icd.arguments["scan"]["0.4"]["required"] == ["scan_id"]
    assert inspect(folder, thorough=True)[1] == []


@pytest.mark.parametrize(("name", "old", "new", "expected"), WRONG)
def test_a_wrong_edit_is_refused_with_file_and_key(folder: Path, name: str, old: str, new: str, expected: str) -> None:
    edit(folder, name, old, new)
    with pytest.raises(IcdError) as caught:
        load(folder)
    assert expected in str(caught.value)
    assert all(line.startswith(Path(name).name) for line in str(caught.value).splitlines())


def test_several_mistakes_are_reported_together(folder: Path) -> None:
    edit(folder, "icd/Node.toml", 'label = "Rate"', "label = 3")
    edit(folder, "icd/Node.toml", "shortest = 0.5", 'shortest = "x"')
    edit(folder, "icd/Node.toml", 'enum = "Colour"', "enum = false")
    edit(folder, "icd/topics.toml", "partitions = 2", 'partitions = "2"')
    with pytest.raises(IcdError) as caught:
        load(folder)
    keys = [line.split(": ")[1] for line in str(caught.value).splitlines()]
    assert sorted(keys) == [
        "attributes[colour].enum",
        "attributes[heapRate].label",
        "attributes[heapRate].sampling.shortest",
        "topics[heaps].partitions",
    ]


@pytest.mark.parametrize("name", ["icd.toml", "enums.toml", "topics.toml", "conditions.toml"])
def test_a_missing_file_is_refused(folder: Path, name: str) -> None:
    (folder / "icd" / name).unlink()
    with pytest.raises(IcdError, match=f"{name}: expected a file in .*, got none"):
        load(folder)


def test_argument_schemas_are_in_the_order_of_their_versions(folder: Path) -> None:
    text = GOOD[SCAN]
    for version in ("0.10", "10.0", "0.5", "2.1"):
        (folder / f"commands/scan-{version}.schema.json").write_text(text.replace("0.4", version))
    assert list(load(folder).arguments["scan"]) == ["0.4", "0.5", "0.10", "2.1", "10.0"]


@pytest.mark.parametrize("name", ["scan.schema.json", "scan-1.schema.json", "Scan-1.0.schema.json", "-1.0.schema.json"])
def test_an_argument_schema_says_its_version_in_its_name(folder: Path, name: str) -> None:
    (folder / "commands" / name).write_text("{}")
    with pytest.raises(IcdError, match=rf"{name}: expected a name of the form family-MAJOR\.MINOR"):
        load(folder)


JUNK = ["null", '"x"', "[3]", '{"a": 3}']


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize(
    ("old", "key"),
    [
        ('"object"', "type"),
        ('["schema", "node", "scan_id", "seq", "time"]', "required"),
        ('{"const": "heap/1", "description": "Version."}', "properties.schema"),
        ('"heap/1", "description": "Version."', "properties.schema.const"),
        ('{"type": "integer", "minimum": 0, "maximum": 9, "description": "Node."}', "properties.node"),
        ('"us"', "properties.time.x-unit"),
    ],
)
def test_a_schema_of_any_shape_is_refused_and_never_crashes(folder: Path, old: str, key: str, junk: str) -> None:
    rest = ', "description": "Version."' if key.endswith("const") else ""
    edit(folder, "messages/heap.schema.json", old, junk + rest)
    icd, findings = inspect(folder, thorough=True)
    assert icd is not None
    assert findings


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"$id": "https://schema.skao.int/ska-sdp-scan/0.4"', '"$id": JUNK'),
        ('{"type": "integer", "minimum": 1, "description": "Number."}', "JUNK"),
        ('{"type": "integer"', '{"$ref": JUNK'),
        ('"type": "object"', '"type": JUNK'),
        ('["scan_id"]', "JUNK"),
        ('"properties": {', '"properties": JUNK, "$defs": {'),
        ('"properties": {', '"$defs": JUNK, "properties": {'),
    ],
)
def test_an_argument_schema_of_any_shape_never_crashes(folder: Path, old: str, new: str, junk: str) -> None:
    edit(folder, SCAN, old, new.replace("JUNK", junk))
    assert inspect(folder, thorough=True)[0] is not None


def attribute(**more: object) -> Attribute:
    fields = {"name": "a", "type": "DevDouble", "label": "A", "description": "A."}
    return msgspec.convert({**fields, **more}, Attribute)


@pytest.mark.parametrize(
    ("more", "unit"),
    [
        *(
            ({"source": {"topic": "heaps", "field": "time", "rule": rule}}, "us")
            for rule in ("mean", "min", "max", "last", "std", "quantile", "sum")
        ),
        ({"source": {"topic": "heaps", "field": "time", "rule": "rate"}}, "us/s"),
        ({"source": {"topic": "heaps", "field": "node", "rule": "rate"}}, "1/s"),
        ({"source": {"topic": "heaps", "field": "time", "rule": "fraction", "of": ["time"]}}, ""),
        ({"source": {"topic": "heaps", "field": "node", "rule": "mean"}}, ""),
        ({"source": {"topic": "heaps", "rule": "rate"}}, "records/s"),
        ({"source": {"topic": "heaps", "rule": "gaps"}}, "records"),
        ({"source": {"topic": "heaps", "rule": "late"}}, "records"),
        ({"source": {"topic": "heaps", "rule": "count"}, "unit": "heaps"}, "heaps"),
        ({"account": {"stream": "heaps", "figure": "rate"}}, "records/s"),
        ({"account": {"stream": "heaps", "figure": "lag"}}, "records"),
        ({"unit": "nodes"}, "nodes"),
        ({}, ""),
    ],
)
def test_the_unit_follows_from_the_rule(folder: Path, more: dict[str, object], unit: str) -> None:
    assert unit_of(load(folder), attribute(**more)) == unit
    assert unit in UNITS or unit == "us/s"


def test_a_unit_beside_a_field_is_an_error(folder: Path) -> None:
    source = {"topic": "heaps", "field": "time", "rule": "mean"}
    with pytest.raises(IcdError, match=r"attributes\[a\]\.unit: expected none"):
        unit_of(load(folder), attribute(source=source, unit="s"))


def test_loading_does_not_import_the_json_schema_library() -> None:
    import subprocess
    import sys

    code = "import sys; from facade.kernel.icd.load import load; load(); sys.exit('jsonschema' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


PART = {
    "icd/topics.toml": """
[roles.weather-worker]
side = "facade"
description = "Worker."

[topics.weather]
description = "Weather."
message = "weather"
key = "mast"
writers = ["subarray"]
readers = ["weather-worker"]
partitions = 1
cleanup = "delete"
retention = 60.0
qos = "state"
account = { about = "weather reports", figures = ["used", "lag"], lag = { max_warning = 7 } }

[extends.state]
writers = ["weather-worker"]
shared = "The weather is a state as well."
""",
    "icd/enums.toml": 'units = ["degC"]\n[enums]\nSky = ["CLEAR", "CLOUDY"]\n',
    "messages/weather.schema.json": """{
      "$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "https://example.org/weather/1",
      "title": "Weather", "description": "The weather.", "type": "object", "additionalProperties": false,
      "required": ["schema", "temperature"], "properties": {
        "schema": {"const": "weather/1", "description": "This schema."},
        "temperature": {"type": "number", "x-unit": "degC", "minimum": -90, "maximum": 60,
                        "description": "Of the air."}}}""",
}


def part_of(tmp_path: Path, **changes: str) -> Path:
    names = {name.replace("/", "_").replace(".", "_").replace("-", "_"): name for name in PART}
    for name, text in {**PART, **{names[name]: text for name, text in changes.items()}}.items():
        (tmp_path / "part" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "part" / name).write_text(text)
    return tmp_path / "part"


def refused(folder: Path, part: Path) -> str:
    icd, findings = read(folder, {"weather": part})
    assert icd is None
    return "\n".join(map(str, findings))


def test_a_flow_brings_its_part_and_takes_part_in_topics_of_others(folder: Path, tmp_path: Path) -> None:
    alone, _ = read(folder)
    icd, findings = read(folder, {"weather": part_of(tmp_path)})
    assert alone is not None
    assert icd is not None
    assert findings == []
    assert check(icd, thorough=True) == []
    assert list(icd.topics) == [*alone.topics, "weather"]
    assert icd.topics["state"].writers == (*alone.topics["state"].writers, "weather-worker")
    assert icd.enums["Sky"] == ("CLEAR", "CLOUDY")
    assert icd.messages["weather"]["title"] == "Weather"
    assert {name: icd.classes[name].attributes for name in alone.classes} == {
        name: one.attributes for name, one in alone.classes.items()
    }


def test_each_class_with_templates_shows_the_accounts_of_all_streams(folder: Path, tmp_path: Path) -> None:
    more = """
[accounts.used]
label = "used"
description = "Records that were used"
stale_after = 0.0

[accounts.lag]
label = "lag"
description = "Records that wait"
"""
    path = next((folder / "icd").glob("[A-Z]*.toml"))
    path.write_text(path.read_text() + more)
    icd, _ = read(folder, {"weather": part_of(tmp_path)})
    assert icd is not None
    assert check(icd) == []
    used, lag = icd.classes[path.stem].attributes[-2:]
    assert (used.name, used.label, used.type, used.stale_after) == ("weatherUsed", "weather: used", "DevLong64", 0.0)
    assert used.description == "Records that were used; stream weather (weather reports)."
    assert (lag.name, lag.limits, unit_of(icd, lag)) == ("weatherLag", Limits(max_warning=7), "records")
    assert account_attribute("ingest.heaps", "dead_lettered") == "ingestHeapsDeadLettered"


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        (
            "icd_topics_toml",
            "topics.weather",
            "topics.state",
            "weather/topics.toml: topics[state]: expected a name that",
        ),
        (
            "icd_topics_toml",
            "roles.weather-worker",
            "roles.ingest",
            "weather/topics.toml: roles[ingest]: expected a name",
        ),
        ("icd_topics_toml", "extends.state", "extends.gone", "weather/topics.toml: extends[gone]: expected one of ['c"),
        (
            "icd_topics_toml",
            "partitions = 1",
            "partitions = ''",
            "weather/topics.toml: topics[weather].partitions: exp",
        ),
        ("icd_enums_toml", "Sky", "Colour", "weather/enums.toml: enums[Colour]: expected a name that no other part"),
        ("messages_weather_schema_json", "{", "[", "weather/weather.schema.json: expected JSON"),
    ],
)
def test_a_part_that_clashes_is_refused(
    folder: Path, tmp_path: Path, file: str, old: str, new: str, expected: str
) -> None:
    name = next(name for name in PART if name.replace("/", "_").replace(".", "_") == file)
    assert expected in refused(folder, part_of(tmp_path, **{file: PART[name].replace(old, new)}))


def test_a_message_and_a_class_twice_are_refused_by_their_files(folder: Path, tmp_path: Path) -> None:
    part = part_of(tmp_path)
    shutil.copytree(folder / "messages", part / "messages", dirs_exist_ok=True)
    (path,) = list((folder / "icd").glob("[A-Z]*.toml"))[:1]
    shutil.copy(path, part / "icd")
    text = refused(folder, part)
    assert f"weather/{path.name}: expected a name that no other part of the interface has, got {path.stem!r}" in text
    assert "weather/state.schema.json: expected a name that no other part of the interface has" in text


def test_the_installed_interface_has_the_parts_of_all_flows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "sdp_weather_of_this_test"
    shutil.copytree(part_of(tmp_path), package / "interface")
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    ours = Manifest(name="alerts", summary="")
    weather = Manifest(name="weather", summary="", interface="sdp_weather_of_this_test:interface")
    text = (package / "interface/icd/topics.toml").read_text().replace('["subarray"]', '["controller"]')
    (package / "interface/icd/topics.toml").write_text(text)
    monkeypatch.setattr("facade.kernel.icd.load.manifests", lambda: (ours, weather))
    icd, findings = inspect(thorough=True)
    assert icd is not None
    assert findings == []
    assert "weather" in icd.topics
    assert "heaps" not in icd.topics
    assert [one.name for one in icd.classes["SdpBus"].attributes if one.name.startswith("weather")] == [
        "weatherUsed",
        "weatherLag",
        "weatherLagTime",
    ]


@pytest.mark.parametrize("path", sorted(resource("schemas").rglob("icd/*.toml")), ids=lambda path: path.name)
def test_the_schema_that_a_file_names_takes_it_and_refuses_a_misspelt_key(path: Path) -> None:
    first, _, _ = path.read_text().partition("\n")
    schema = json.loads((path.parent / first.removeprefix("#:schema ")).read_text())
    validator, document = jsonschema.Draft202012Validator(schema), tomllib.loads(path.read_text())
    assert [*validator.iter_errors(document)] == []
    assert [*validator.iter_errors({**document, "descripton": ""})]
