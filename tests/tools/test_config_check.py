"""`sdp-facade config`: every setting is explained, everything wrong is said, no secret is shown."""

import re
from contextlib import nullcontext
from pathlib import Path

import pytest
from msgspec.structs import fields
from typer.testing import CliRunner, Result

from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.cli.app import app
from facade.kernel.config import ENVIRONMENT, Settings, load_settings
from facade.kernel.errors import ConfigError
from facade.tools.config import (
    DEFAULT,
    PROCESS_VARIABLES,
    explain_settings,
    exposed,
    meanings,
    misspelt,
    shadows,
    template,
)

VARIABLES = ("KAFKA_BOOTSTRAP", "SDP_FACADE_CONFIG", *(name for name in ENVIRONMENT))


def check(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> Result:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return CliRunner().invoke(app, ["config", "check"], terminal_width=200)


def test_every_setting_has_a_meaning_and_a_variable() -> None:
    said = meanings()
    assert list(said) == [field.name for field in fields(Settings)]
    assert all(said.values())
    assert {*ENVIRONMENT.values(), "kafka", "controller_keys"} == set(said)


def test_every_variable_that_the_code_reads_is_explained() -> None:
    root = Path(__file__).parents[2]
    sources = (file.read_text() for package in ("facade", "devices") for file in (root / package).rglob("*.py"))
    read = {f"SDP_{name}" for text in sources for name in re.findall(r"\"(?:SDP_|\{VARIABLES\})([A-Z_]+)\"", text)}
    assert read <= {*ENVIRONMENT, *PROCESS_VARIABLES}


def test_it_says_where_each_value_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "site.toml"
    file.write_text('nodes = 7\nsubarrays = 3\n[kafka]\n"security.protocol" = "SSL"\n"ssl.key.password" = "hunter2"\n')
    shown, wrong = explain_settings({"SDP_FACADE_CONFIG": str(file), "SDP_INGEST_NODES": "9"})
    found = {one.name: (one.value, one.origin) for one in shown}
    assert wrong == []
    assert found["nodes"] == ("9", "SDP_INGEST_NODES")
    assert found["subarrays"] == ("3", str(file))
    assert found["prefix"] == ("local.", DEFAULT)
    assert found["kafka.security.protocol"] == ("SSL", str(file))
    assert found["kafka.ssl.key.password"] == ("***", str(file))


def test_of_several_files_it_names_the_one_that_a_setting_comes_from(tmp_path: Path) -> None:
    site, own = tmp_path / "site.toml", tmp_path / "sdp-control.toml"
    site.write_text('nodes = 7\nsubarrays = 3\n[kafka]\n"security.protocol" = "SSL"\n"sasl.username" = "nobody"\n')
    own.write_text('subarrays = 4\n[kafka]\n"sasl.username" = "sdp-control"\n')
    environment = {"SDP_FACADE_CONFIG": f"{site}:{own}", "SDP_INGEST_NODES": "9"}
    shown, wrong = explain_settings(environment)
    assert {one.name: one.origin for one in shown if one.origin not in (DEFAULT, "SDP_INGEST_NODES")} == {
        "subarrays": str(own),
        "kafka.security.protocol": str(site),
        "kafka.sasl.username": str(own),
    }
    assert wrong == []
    assert [*shadows(environment)] == [f"environment: SDP_INGEST_NODES=9 overrides nodes = 7 of {site}"]
    own.write_text("replay = true\n")
    assert [*shadows({"SDP_FACADE_CONFIG": str(own), "SDP_REPLAY": "true"})] == [], "it is the same value"


def test_it_says_everything_that_is_wrong_and_no_secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "site.toml"
    file.write_text('nodes = "four"\nrack_sise = 3\nsubarrays = 99\n[kafka]\n"sasl.pasword" = 17171\n')
    result = check(monkeypatch, {"SDP_FACADE_CONFIG": str(file), "SDP_TABLE_EXPIRY": "soon"})
    said = result.output
    assert result.exit_code == 1
    assert f"settings ({file}): Expected `int`, got `str` - at `$.nodes` (it is 'four')" in said
    assert f"{file}: rack_sise: no such setting; expected perhaps rack_size" in said
    assert f"settings ({file}): subarrays: expected 1 to 16, got 99" in said
    assert "settings (SDP_TABLE_EXPIRY): Expected `float`, got `str` - at `$.table_expiry` (it is 'soon')" in said
    assert "17171" not in said


def test_the_kafka_client_is_asked_about_its_properties(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "site.toml"
    file.write_text('[kafka]\n"security.protocol" = "SASL_TSL"\n"sasl.pasword" = "hunter2"\n')
    result = check(monkeypatch, {"SDP_FACADE_CONFIG": str(file)})
    assert result.exit_code == 1
    assert 'Invalid value "SASL_TSL" for configuration property "security.protocol"' in result.output
    assert 'No such configuration property: "sasl.pasword"' in result.output
    assert "hunter2" not in result.output


def test_properties_that_do_not_go_together_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "site.toml"
    file.write_text('[kafka]\n"security.protocol" = "SSL"\n"ssl.ca.location" = "/nowhere"\n')
    result = check(monkeypatch, {"SDP_FACADE_CONFIG": str(file)})
    assert (result.exit_code, "kafka: all together: expected what librdkafka takes, got: " in result.output) == (
        1,
        True,
    )


def test_properties_that_need_each_other_are_right(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "site.toml"
    properties = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "tm"}
    lines = [f'"{name}" = "{value}"' for name, value in {**properties, "sasl.password": "hunter2"}.items()]
    file.write_text("\n".join(["[kafka]", *lines]))
    assert check(monkeypatch, {"SDP_FACADE_CONFIG": str(file)}).exit_code == 0


def test_a_misspelt_variable_is_a_warning_and_a_foreign_one_is_none() -> None:
    found = list(misspelt({"SDP_INGEST_NODE": "4", "SDP_CONFIG_HOST": "etcd", "SDP_INGEST_NODES": "4"}))
    assert found == ["environment: SDP_INGEST_NODE: no such variable; expected perhaps SDP_INGEST_NODES"]


def test_the_template_says_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "site.toml"
    file.write_text(template())
    assert load_settings({"SDP_FACADE_CONFIG": str(file)}) == Settings()
    said = [line.removeprefix("# ") for line in template().splitlines() if " = " in line and '"..."' not in line]
    file.write_text("\n".join(line for line in said if not line.startswith('"')))
    assert load_settings({"SDP_FACADE_CONFIG": str(file)}) == Settings()
    assert len(said) >= len(ENVIRONMENT)
    assert CliRunner().invoke(app, ["config", "template"]).output == template()


def test_the_password_of_a_url_is_not_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    roots = "/data:https://tm:hunter2/x@store/a?signature=hunter3:s3://key:hunter4@bucket"
    result = check(monkeypatch, {"SDP_TABLE_ROOTS": roots})
    said = result.output
    assert result.exit_code == 1, "`tables assemble` does not start with it either"
    assert "SDP_TABLE_ROOTS): table_roots: expected no URL with a user, a query or a fragment" in said
    assert "/data:https://***@store/a?***:s3://***@bucket" in "".join(re.findall(r"[^\s│]", said))
    assert "hunter" not in said
    file = tmp_path / "site.toml"
    file.write_text('table_roots = ["https://tm:hunter2@store"]\n')
    assert "hunter" not in check(monkeypatch, {"SDP_FACADE_CONFIG": str(file)}).output


@pytest.mark.parametrize(
    ("variable", "text", "shown"),
    [
        ("SDP_OLOG_LOGIN", "tm:hunter2", "***"),
        ("SDP_WEB_OIDC_SECRET", "hunter2", "***"),
        ("SDP_WEB_TOKENS", "operator tm hunter2", "***"),
        ("SDP_WEB_ARCHIVE", "s3://key:hunter2@bucket/night", "s3://***@bucket/night"),
        ("SDP_METRICS_PORT", "9090", "9090"),
    ],
)
def test_the_secret_of_a_process_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, shown: str
) -> None:
    said = check(monkeypatch, {variable: text}).output
    assert re.search(rf"^{variable} +{re.escape(shown)} +environment ", said, re.MULTILINE)


@pytest.mark.parametrize("brokers", ["tm:hunter2@store:9092", "a:1,tm:hun,ter/hunter2@store:9092", "hunter2@store"])
def test_the_password_among_the_brokers_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, brokers: str
) -> None:
    file = tmp_path / "site.toml"
    file.write_text(f'bootstrap = "{brokers}"\n')
    for environment in ({"KAFKA_BOOTSTRAP": brokers}, {"SDP_FACADE_CONFIG": str(file), "KAFKA_BOOTSTRAP": "b:1"}):
        assert "hunter" not in (said := check(monkeypatch, environment).output)
        assert "***@store" in said
    with pytest.raises(ConfigError, match=r"bootstrap: expected no URL with a user") as refused:
        load_settings({"KAFKA_BOOTSTRAP": brokers})
    assert "hunter2" not in str(refused.value)
    assert "hunter2" not in repr(Settings(bootstrap=brokers))


@pytest.mark.parametrize(
    ("mode", "line", "warned"),
    [
        (0o644, '"sasl.password" = "x"', True),
        (0o604, '"ssl.key.pem" = "x"', True),
        (0o640, '"sasl.password" = "x"', False),
        (0o644, '"ssl.ca.pem" = "x"', False),
        (0o644, '"sasl.username" = "x"', False),
    ],
)
def test_a_file_with_a_password_that_everybody_may_read_is_named(
    tmp_path: Path, mode: int, line: str, warned: bool
) -> None:
    file = tmp_path / "site.toml"
    file.write_text(f"[kafka]\n{line}\n")
    file.chmod(mode)
    found = [*exposed({"SDP_FACADE_CONFIG": str(file)})]
    assert found == (
        [f"{file}: every user of this host may read its secrets (mode {mode:04o}); chmod o-r {file}"] * warned
    )


@pytest.mark.parametrize("variable", ["SDP_TABLE_ROOTS", "KAFKA_BOOTSTRAP"])
def test_a_setting_with_a_password_is_refused_wherever_it_is_read(variable: str) -> None:
    with pytest.raises(ConfigError, match=r"expected no URL with a user") as refused:
        load_settings({variable: "//tm:hunter2@store"})
    assert "hunter2" not in str(refused.value)
    assert "hunter2" not in repr(Settings(bootstrap="kafka://tm:hunter2@store"))


def test_whoever_connects_is_told_of_a_wrong_property() -> None:
    with pytest.raises(ConfigError, match=r'No such configuration property: "sasl.pasword".*config check') as refused:
        Connection(Settings(kafka={"sasl.pasword": "hunter2", "security.protocol": "SSL"}))
    assert "hunter2" not in str(refused.value)


def test_a_wrong_setting_hides_no_unknown_property_and_a_variable_that_overrides_the_file_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "site.toml"
    file.write_text('bootstrp = "b:1"\nnodes = 0\nprefix = "mid."\n[kafka]\n"securty.protocol" = "SSL"\n"a.b" = "c"\n')
    monkeypatch.setenv("SDP_FACADE_CONFIG", str(file))
    monkeypatch.setenv("SDP_TOPIC_PREFIX", "other.")
    done = CliRunner().invoke(app, ["config", "check"], env={"COLUMNS": "400"})
    assert done.exit_code == 1
    for text in (
        "bootstrp",
        "nodes",
        "securty.protocol",
        "a.b",
        f"SDP_TOPIC_PREFIX=other. overrides prefix = mid. of {file}",
    ):
        assert text in done.stderr.replace("\n", " ")


@pytest.mark.parametrize(
    ("variable", "text", "said"),
    [
        ("SDP_TABLE_EXPIRY", "nan", "table_expiry: expected a number >= 0, got nan"),
        ("SDP_TABLE_DISK", "-1", "table_disk: expected a number >= 0, got -1"),
        ("SDP_TOPIC_PREFIX", "mid sdp/", "prefix: expected up to 100 of the characters A-Z a-z 0-9 . _ -, got 'mid"),
        ("KAFKA_BOOTSTRAP", "", "bootstrap: expected brokers as host:port with commas between, got ''"),
        ("KAFKA_BOOTSTRAP", "a:port", "bootstrap: expected brokers as host:port with commas between, got 'a:port'"),
        ("KAFKA_BOOTSTRAP", "a:1 b:1", "bootstrap: expected brokers as host:port with commas between, got 'a:1 b:1'"),
    ],
)
def test_a_setting_with_which_nothing_would_work_is_refused(variable: str, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"settings (built-in defaults, overridden by {variable}): {said}")):
        load_settings({variable: text})


@pytest.mark.parametrize("brokers", ["kafka", "a:1, b-2.example.org:9092,", "SASL_SSL://a:1", "[fe80::1]:9092"])
def test_brokers_as_kafkas_client_takes_them_are_taken(brokers: str) -> None:
    assert load_settings({"KAFKA_BOOTSTRAP": brokers}).bootstrap == brokers


@pytest.mark.parametrize(("text", "is_taken"), [("0.09", False), ("0.1", True), ("2.5", True), ("2.6", False)])
def test_a_command_waits_for_the_bus_no_longer_than_a_tango_client_for_its_call(text: str, is_taken: bool) -> None:
    expectation = (
        nullcontext() if is_taken else pytest.raises(ConfigError, match=r"command_timeout: expected 0\.1 to 2\.5")
    )
    with expectation:
        assert load_settings({"SDP_COMMAND_TIMEOUT": text}).command_timeout == float(text)
