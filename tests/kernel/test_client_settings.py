"""The table of client settings against Kafka's library, and against the code that opens clients."""

import ast
import ctypes
from pathlib import Path

import pytest
from confluent_kafka import cimpl

from facade.kernel.bus.kafka.client_settings import TABLE, settings_of

KAFKA = Path(__file__).parents[2] / "facade" / "kernel" / "bus" / "kafka"
ADMIN = Path(__file__).parents[2] / "facade" / "admin"
BY_THE_CALLER = {
    "auto.offset.reset",
    "bootstrap.servers",
    "client.id",
    "debug",
    "enable.partition.eof",
    "group.id",
    "group.instance.id",
    "isolation.level",
    "linger.ms",
    "log_level",
    "message.timeout.ms",
    "partitioner",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "transactional.id",
}
"""Names, parameters of a caller, and the single question to a broker that may not be there."""
FORMS = {True: "true", False: "false", -1: "-1"}


def library_default(name: str) -> str | None:
    """Return the library's default of a setting; empty text: it has none; None: no setting has this name."""
    library = ctypes.CDLL(cimpl.__file__)
    for kind in ("rd_kafka_conf", "rd_kafka_topic_conf"):
        new, get = getattr(library, f"{kind}_new"), getattr(library, f"{kind}_get")
        new.restype = ctypes.c_void_p
        text, size = ctypes.create_string_buffer(512), ctypes.c_size_t(512)
        if get(ctypes.c_void_p(new()), name.encode(), text, ctypes.byref(size)) == 0:
            return text.value.decode()
    return None


@pytest.mark.parametrize("section", TABLE)
def test_the_table_names_the_defaults_of_the_library(section):
    for one in TABLE[section]:
        default = FORMS.get(one.default, one.default) if isinstance(one.default, bool) else one.default
        assert library_default(one.name) == ("" if default is None else str(default)), one.name


@pytest.mark.parametrize("section", TABLE)
def test_each_setting_is_named_once_in_its_section_and_has_a_reason(section):
    names = [one.name for one in TABLE[section]]
    assert len(names) == len(set(names))
    assert all(one.reason.endswith(".") for one in TABLE[section])


def test_all_who_consume_fetch_again_as_soon_as_their_queue_has_room():
    assert settings_of("consumer")["fetch.queue.backoff.ms"] == 2


def test_later_sections_replace_earlier_ones():
    assert settings_of("every", "worker")["statistics.interval.ms"] == 250
    assert settings_of("worker", "every")["statistics.interval.ms"] == 1000


def test_no_client_has_a_setting_that_the_table_lacks():
    assert [*KAFKA.glob("*.py")]
    strange = {
        f"{path.name}:{node.lineno}: {node.value}"
        for path in KAFKA.glob("*.py")
        if path.name not in ("client_settings.py", "topics.py")  # topics have the settings of brokers
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "." in node.value
        if node.value not in BY_THE_CALLER and library_default(node.value) is not None
    }
    assert strange == set()


@pytest.mark.needs("repository")
def test_every_section_has_a_client():
    used = {
        argument.value
        for path in (*KAFKA.glob("*.py"), *ADMIN.glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "settings_of"
        for part in node.args
        for argument in ast.walk(part)
        if isinstance(argument, ast.Constant)
    }
    assert used == set(TABLE)
