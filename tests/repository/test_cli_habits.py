"""What everybody expects of a command line: examples in the help, exit codes, completion."""

import errno
import os
import re
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest
import typer
from typer.testing import CliRunner

from devices.kernel.server import main as server
from facade import __version__, simulate
from facade.kernel.cli import app as command_line
from facade.kernel.cli.app import app, run
from facade.kernel.cli.tango_host import first_that_answers, require_tango_database
from facade.kernel.console import SINCE
from facade.kernel.errors import BusError, ConfigError, InfraError
from facade.kernel.manifest import Subcommand
from facade.tools import subcommands as tools
from facade.tools import topics
from sdp_facade_lab.fault_runs.frame import FLOWS
from tests.support.command_line import walk
from tests.support.waiting import HANG

OF_TANGO = ("conformance", "bench", "demo", "prove")
COMMANDS = {" ".join(words): command for words, command in walk()}


@pytest.mark.parametrize("words", COMMANDS)
def test_each_help_has_an_example(words: str) -> None:
    text = f"{COMMANDS[words].help}\n{COMMANDS[words].epilog or ''}"
    assert "Example" in text, "add a line `Example: sdp-facade ...` to the docstring"
    assert f"sdp-facade {words}" in text[text.index("Example") :]


@pytest.mark.parametrize("words", COMMANDS)
def test_each_help_is_wrapped_once_at_80_columns(words: str) -> None:
    done = CliRunner().invoke(app, [*words.split(), "--help"], env={"COLUMNS": "80"}, terminal_width=80)
    lines = done.output.splitlines()
    assert max(map(len, lines)) <= 80
    assert not re.search(r"``|\[/?bold\]", done.output), "marks that nothing renders"
    # A line that ends early, before a word that had its place on it, was torn from its paragraph.
    about = done.output.partition("\nArguments:\n")[0].partition("\nOptions:\n")[0]
    torn = [
        (line, after)
        for line, after in pairwise(map(str.rstrip, about.splitlines()))
        if line.strip() and after.strip() and len(line) + 1 + len(after.split()[0]) <= 78
    ]
    assert not torn


def test_the_tools_of_developers_are_a_group_of_their_own_at_the_end() -> None:
    done = CliRunner().invoke(app, ["--help"], terminal_width=80)
    found = re.findall(r"^  (\w[\w-]*)  ", done.output.partition("\nDevelop:\n")[2], re.MULTILINE)
    assert found == ["bench", "conformance", "icd", "prove"]
    assert max(map(len, done.output.splitlines())) <= 80


FLOATS = [
    (words, option.opts[0])
    for words, one in COMMANDS.items()
    for option in one.params
    if option.type.name.startswith("float")
]


@pytest.mark.parametrize("value", ["nan", "inf"])
@pytest.mark.parametrize(("words", "option"), FLOATS)
def test_a_number_that_no_limit_excludes_is_refused(words: str, option: str, value: str) -> None:
    needed = ["x" for one in COMMANDS[words].params if one.required and one.param_type_name == "argument"]
    done = CliRunner().invoke(app, [*words.split(), *needed, option, value])
    assert (done.exit_code, f"Invalid value for '{option}'" in done.output) == (2, True), done.output


@pytest.mark.parametrize(("option", "metavar"), [("since", "DURATION"), ("operator", "NAME")])
def test_an_option_is_the_same_everywhere(option: str, metavar: str) -> None:
    """A number of an alert is no time."""
    found = {
        words: one
        for words, command in COMMANDS.items()
        if words != "alerts follow"
        for one in command.params
        if one.name == option
    }
    assert len(found) > 5
    assert {one.metavar for one in found.values()} == {metavar}
    defaults = {one.default or SINCE for one in found.values()} if option == "since" else {""}
    assert defaults == ({SINCE} if option == "since" else {""})


def test_the_former_option_of_a_name_is_taken_and_not_shown() -> None:
    users = [words for words, command in COMMANDS.items() if any("--user" in one.opts for one in command.params)]
    assert "alerts ack" in users
    for words in set(users) - {"infra env"}:  # there it is a login
        assert "--user" not in CliRunner().invoke(app, [*words.split(), "--help"]).output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("weather",),
            f"FLOW: expected one of {', '.join(FLOWS)}, got 'weather'",
        ),
        (("commands", "--count", "99999"), "--count: expected at most 15,200 for commands, got 99,999"),
        (("heaps", "--secure"), "--secure: expected cluster or rolling, got heaps"),
        (("rolling", "--minutes", "1"), "--minutes: expected cluster, got rolling"),
    ],
)
def test_a_proof_that_cannot_be_made_is_refused_before_anything_starts(words: tuple[str, ...], said: str) -> None:
    assert said in str(CliRunner().invoke(app, ["prove", *words]).exception)


@pytest.mark.parametrize(("raised", "code"), [(BusError("no broker"), 1), (KeyboardInterrupt(), 130)])
def test_a_failure_is_1_and_ctrl_c_is_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], raised: BaseException, code: int
) -> None:
    def fail() -> None:
        raise raised

    monkeypatch.setattr(topics, "load_settings", fail)
    monkeypatch.setattr(sys, "argv", ["sdp-facade", "topics", "create"])
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == code
    if code == 1:
        assert capsys.readouterr().err == "error: no broker\n"


def full_disk(_: Path) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (Path.mkdir, "{path}: Not a directory; name another path"),
        (full_disk, "No space left on device; make space where it writes, or name another path"),
    ],
)
def test_a_path_that_cannot_be_written_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    write: Callable[[Path], None],
    said: str,
) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "state"
    monkeypatch.setattr(topics, "load_settings", lambda: write(path))
    monkeypatch.setattr(sys, "argv", ["sdp-facade", "topics", "create"])
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 1
    assert capsys.readouterr().err == f"error: {said.format(path=path)}\n"


@pytest.mark.parametrize(
    "words",
    [
        ["nonsense"],
        ["demo", "--rate", "fast"],
        ["serve"],
        ["infra", "start", "nothing"],
        ["bench", "--page", "none.md", "--only", "x"],
    ],
)
def test_a_wrong_call_is_2(words: list[str]) -> None:
    assert CliRunner().invoke(app, words).exit_code == 2


def test_so_it_is_for_the_device_server(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        server([])
    assert ended.value.code == 2
    assert "for example: SdpFacade control" in capfd.readouterr().err


@pytest.mark.parametrize("words", [["version"], ["--version"]])
def test_the_version_is_printed_and_success_is_0(words: list[str]) -> None:
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, done.output) == (0, f"{__version__}\n")


def test_the_shell_completes() -> None:
    asks = {"_SDP_FACADE_COMPLETE": "complete_bash", "COMP_WORDS": "sdp-facade con", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", "from facade.kernel.cli.app import app; app(prog_name='sdp-facade')"],
        env={**os.environ, **asks},
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    assert "config" in done.stdout.split(), done.stderr


ALONE = """
import sys
from facade.kernel.cli.__main__ import main

sys.argv[1:] = sys.argv[1].split()
try:
    main()
finally:
    heavy = ("tango", "numpy", "confluent_kafka", "rich", "sdp_facade_lab.testbed")
    loaded = [name for name in heavy if name in sys.modules]
    sys.stderr.write(" ".join(loaded))
"""


def loaded_by(words: str) -> tuple[str, set[str]]:
    done = subprocess.run(
        [sys.executable, "-c", ALONE, words], capture_output=True, text=True, timeout=HANG, check=False
    )
    return done.stdout, set(done.stderr.split())


@pytest.mark.parametrize("words", ["--version", "--help", "-h", "version", "simulate --help", "alerts -h"])
def test_what_only_prints_imports_no_sub_command(words: str) -> None:
    printed, loaded = loaded_by(words)
    assert printed
    assert loaded == set()


def test_what_needs_no_tango_starts_without_it() -> None:
    words = [words for words in COMMANDS if words not in OF_TANGO]
    code = f"""
import sys
from typer.testing import CliRunner
from facade.kernel.cli.app import app

for words in {words!r}:
    CliRunner().invoke(app, [*words.split(), "--help"], catch_exceptions=False)
    assert not {{"tango", "sdp_facade_lab.testbed"}} & sys.modules.keys(), words
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 0, done.stderr


def test_a_missing_tango_host_is_said_without_tango() -> None:
    """D19: it was said after 8.5 s, by Tango."""
    needed = {
        "alerts history": ["a"],
        "alerts show": ["a"],
        "alerts shelve": ["--for", "1h"],
        "command": ["1", "Abort"],
    }
    calls = [
        [*words.split(), *needed.get(words, [])] + (["--comment", "c"] if "comment" in names else [])
        for words, command in COMMANDS.items()
        if "tango_host" in (names := {one.name for one in command.params}) and words not in OF_TANGO
    ]
    assert len(calls) > 10
    code = f"""
import sys
from typer.testing import CliRunner
from facade.kernel.cli.app import app

for words in {calls!r}:
    done = CliRunner().invoke(app, words, env={{"TANGO_HOST": ""}})
    assert done.exit_code != 0, words
    said = f"{{done.output}} {{done.exception}}"
    assert "TANGO_HOST: expected host:port of the Tango database, got nothing" in said, (words, said)
    assert "tango" not in sys.modules, words
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 0, done.stderr


def test_of_several_tango_databases_the_first_that_answers_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that stands still takes connections: PyTango would wait for it, 9 s for each call."""
    answer = b"GIOP\1\0\1\1" + struct.pack("<IIII", 12, 0, 1, 0)  # a reply without an exception
    with (
        socket.create_server(("127.0.0.1", 0)) as standing_still,
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as other,
    ):
        still, here, there = (f"127.0.0.1:{server.getsockname()[1]}" for server in (standing_still, one, other))
        away = "127.0.0.1:9"

        def answers(server: socket.socket) -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        connection.recv(100)
                        connection.sendall(answer)

        for server in (one, other):
            threading.Thread(target=answers, args=(server,), daemon=True).start()
        for given, used in (
            (here, here),
            (f"{away},{there}", there),
            (f"{here},{away}", here),
            (f"{here},{there}", here),
            (f"{away}, {there} ", there),
            (f" {here} ", here),
        ):
            assert first_that_answers(given) == used
            require_tango_database(first_that_answers(given))
        monkeypatch.setattr("facade.kernel.cli.tango_host._ANSWER", 0.2)
        assert first_that_answers(f"{still},{away}") == f"{still},{away}"
        assert first_that_answers(away) == away
        with pytest.raises(InfraError, match=r"the Tango database at '127.0.0.1:9,127.0.0.1:8' does not answer"):
            require_tango_database(first_that_answers(f"{away},127.0.0.1:8"))
    for words, used in COMMANDS.items():
        for one in used.params:
            assert one.name != "tango_host" or one.callback is not None, words


def test_a_wrong_name_is_answered_with_the_nearest_one() -> None:
    assert "Did you mean 'tables'?" in CliRunner().invoke(app, ["tabels"]).output
    assert "Did you mean 'ingest'?" in CliRunner().invoke(app, ["simulate", "ingset"]).output


def plug_in(monkeypatch: pytest.MonkeyPatch, *contributed: Subcommand) -> None:
    found = (*simulate.SUBCOMMANDS, *tools.SUBCOMMANDS, *contributed)
    monkeypatch.setattr(command_line, "subcommands", lambda: iter(found))


def test_a_flow_from_outside_has_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def play(rate: float = 1.0) -> None:
        print(f"rate {rate}")

    sub = typer.Typer()
    sub.command()(play)
    sub.callback()(lambda: None)
    monkeypatch.setitem(sys.modules, "weather", ModuleType("weather"))
    monkeypatch.setattr(sys.modules["weather"], "play", play, raising=False)
    monkeypatch.setattr(sys.modules["weather"], "group", sub, raising=False)
    plug_in(
        monkeypatch,
        Subcommand(("simulate", "weather"), "weather:play", "Play the weather."),
        Subcommand(("weather",), "weather:group", "Look at the weather."),
    )
    run = CliRunner()
    assert re.search("^  weather +Look at the weather.$", run.invoke(app, []).output, re.MULTILINE)
    assert "weather  Play the weather." in run.invoke(app, ["simulate"]).output
    assert run.invoke(app, ["simulate", "weather", "--rate", "3"]).output == "rate 3.0\n"
    assert run.invoke(app, ["weather", "play"]).output == "rate 1.0\n"
    assert "--install-completion" not in run.invoke(app, ["weather", "--help"]).output


@pytest.mark.parametrize(
    ("words", "why"), [(("config",), "it is there already"), (("rain", "list"), "'rain' is no group")]
)
def test_what_has_no_place_is_said(monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], why: str) -> None:
    plug_in(monkeypatch, Subcommand(words, "weather:play", ""))
    with pytest.raises(ConfigError, match=f"sub-command '{' '.join(words)}' of weather:play: {why}"):
        CliRunner().invoke(app, ["version"])
