"""Every flow has one manifest, and what it names exists; generic code names no flow's classes and topics."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import facade
from facade.kernel.icd.load import load as load_icd
from facade.kernel.manifest import Manifest, load, manifests

pytestmark = pytest.mark.needs("facade.archive", "facade.sdk", "facade.tools")

ICD = load_icd()
ROOT = Path(facade.__file__).parents[1]
FOLDERS = sorted(path.parent.name for path in (ROOT / "facade").rglob("manifest.py") if path.parent.name != "kernel")
GENERIC = (
    "facade/kernel/runtime",
    "facade/kernel/bus",
    "facade/kernel/codec",
    "facade/kernel/cli",
    "facade/tools/exports",
    "devices/kernel/base.py",
    "devices/kernel/server.py",
    "devices/kernel/classes.py",
    "devices/kernel/mapping.py",
    "devices/registration.py",
)
OF_THE_RUNTIME = {
    "accounts",
    "heartbeats",
    "server-heartbeats",
    "positions",
    "snapshots",
    "dead-letters",
    "state",
    "settings",
    "replay",
}
"""Topics that the runtime itself writes and reads."""


def references(manifest: Manifest) -> list[str]:
    named = [manifest.compose, manifest.health, manifest.reporter, manifest.alert_source]
    named += [*manifest.device_classes.values(), *(one.target for one in manifest.subcommands)]
    return [reference for reference in named if reference]


def test_each_folder_is_a_flow_and_each_flow_a_folder():
    assert [manifest.name for manifest in manifests()] == FOLDERS


@pytest.mark.parametrize("manifest", manifests(), ids=lambda manifest: manifest.name)
def test_what_a_manifest_names_exists(manifest: Manifest):
    for reference in references(manifest):
        assert load(reference) is not None
    assert manifest.summary.endswith(".")
    roles = {worker.name for worker in manifest.workers} | manifest.processes.keys()
    assert roles <= ICD.roles.keys()


@pytest.mark.parametrize("manifest", manifests(), ids=lambda manifest: manifest.name)
def test_who_sets_records_aside_is_one_device_server_that_reads_them(manifest: Manifest):
    single = {one.instance for one in ICD.classes.values() if "{" not in one.instance}
    assert manifest.set_aside_by.keys() <= manifest.topics.keys()
    for topic, role in manifest.set_aside_by.items():
        assert role in single.intersection(ICD.topics[topic].readers)


@pytest.mark.parametrize("manifest", [one for one in manifests() if one.page], ids=lambda manifest: manifest.name)
def test_a_page_names_attributes_of_the_interface(manifest: Manifest):
    page = manifest.page
    assert page is not None
    for name in page.attributes or manifest.device_classes:
        known = {one.name: one for one in ICD.classes[name].attributes}
        assert known.keys() >= {*page.attributes.get(name, ()), *page.over, *page.over.values(), *page.waterfalls}
        for array, axis in page.over.items():
            assert known[array].length == known[axis].length, "an entry of the axis for each element or column"
        for array in page.waterfalls:
            assert (known[array].type, known[array].height) == ("DevDouble", 0)
    assert page.attributes or manifest.device_classes


def test_each_topic_and_each_device_class_belongs_to_one_flow():
    topics = [topic for manifest in manifests() for topic in manifest.topics]
    classes = [name for manifest in manifests() for name in manifest.device_classes]
    streams = {name for name, topic in ICD.topics.items() if topic.window is not None and name not in topics}
    assert streams, "a windowed topic needs no manifest"
    assert sorted(topics) == sorted(ICD.topics.keys() - streams)
    assert sorted(classes) == sorted(ICD.classes)


def test_manifests_load_nothing_heavy():
    heavy = "{'numpy', 'msgspec', 'tango', 'typer', 'rich', 'confluent_kafka', 'jsonschema_rs'}"
    code = (
        "import sys; from facade.kernel.manifest import manifests; manifests();"
        f" print(sorted({heavy} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_generic_code_names_no_class_and_no_topic_of_a_flow():
    # Words that also mean other things: messages, and sections of the interface.
    words = ICD.messages.keys() | {"commands", "alerts", "quality", "tables"}
    names = (ICD.classes.keys() | ICD.topics.keys()) - OF_THE_RUNTIME - words
    found = []
    for place in GENERIC:
        path = ROOT / place
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            found += [
                f"{file.relative_to(ROOT)}:{node.lineno}: {node.value}"
                for node in ast.walk(ast.parse(file.read_text()))
                if isinstance(node, ast.Constant) and node.value in names
            ]
    assert found == []
