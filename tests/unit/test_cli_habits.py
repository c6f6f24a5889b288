"""What everybody expects of a command line: examples in the help, exit codes, completion."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import typer
from typer.testing import CliRunner

from devices.cli import BUS_SIDE
from devices.server import main as server
from devices.tango_cli import app
from facade import __version__
from facade.cli import topics
from facade.cli.app import run
from facade.errors import BusError
from tests.support.waiting import HANG


def walk(command: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Return each command's words and its help, as typer has it."""
    if children := getattr(command, "commands", None):
        for name, child in children.items():
            yield from walk(child, (*path, name))
    else:
        yield " ".join(path), f"{getattr(command, 'help', '') or ''}\n{getattr(command, 'epilog', '') or ''}"


COMMANDS = dict(walk(typer.main.get_command(app)))


@pytest.mark.parametrize("words", COMMANDS)
def test_each_help_has_an_example(words: str) -> None:
    text = COMMANDS[words]
    assert "Example" in text, "add a line `Example: sdp-facade ...` to the docstring"
    assert f"sdp-facade {words}" in text[text.index("Example") :]


@pytest.mark.parametrize(("raised", "code"), [(BusError("no broker"), 1), (KeyboardInterrupt(), 130)])
def test_a_failure_is_1_and_ctrl_c_is_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], raised: BaseException, code: int
) -> None:
    def fail() -> None:
        raise raised

    monkeypatch.setattr(topics, "load_settings", fail)
    monkeypatch.setattr(sys, "argv", ["sdp-facade", "topics", "create"])
    with pytest.raises(SystemExit) as ended:
        run(app)
    assert ended.value.code == code
    if code == 1:
        assert capsys.readouterr().err == "error: no broker\n"


@pytest.mark.parametrize("words", [["nonsense"], ["demo", "--rate", "fast"], ["serve"], ["infra", "start", "nothing"]])
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
    """As bash asks: the words so far in the environment, the completions on standard output."""
    asks = {"_SDP_FACADE_COMPLETE": "complete_bash", "COMP_WORDS": "sdp-facade con", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", "from facade.cli.app import app; app(prog_name='sdp-facade')"],
        env={**os.environ, **asks},
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    assert "config" in done.stdout.split(), done.stderr


ALONE = """
import sys
from devices.cli import main

name = sys.argv[1]
sys.argv[1:] = [name, "--help"]
try:
    main()
finally:
    assert "tango" not in sys.modules, f"{name} loads Tango"
"""


@pytest.mark.parametrize("name", sorted(BUS_SIDE))
def test_what_needs_no_tango_starts_without_it_and_is_the_same(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ALONE, name],
        env={**os.environ, "COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    whole = CliRunner().invoke(app, [name, "--help"], prog_name="-c", env={"COLUMNS": "120"})
    assert done.stdout.split() == whole.output.split()
