"""The command line of the program: its sub-commands by name, each imported when it is run.

The imports of a sub-command may take longer than its work, and than a supervisor allows for a restart. So the help of a
group comes from tables: those of the flows' manifests, and those of the entry-point group
`facade.kernel.manifest.SUBCOMMANDS`.
"""

import errno
import logging
import math
import sys
from typing import Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

import facade
from facade.kernel.errors import ConfigError, FacadeError
from facade.kernel.extras import advice
from facade.kernel.manifest import SECTIONS, Subcommand, load, subcommands
from facade.kernel.names import ABOUT
from facade.kernel.names import PROGRAM as NAME
from facade.kernel.printable import printable

_COMPLETION: Final = ("install_completion", "show_completion")


class LazyCommand(TyperCommand):
    """A sub-command that is imported when it runs; until then only its name and one line of help are known."""

    def __init__(self, subcommand: Subcommand) -> None:
        super().__init__(subcommand.words[-1], help=subcommand.summary, short_help=subcommand.summary)
        self._target = subcommand.target

    def load(self) -> Any:
        """Import and return the command, or the group."""
        found = load(self._target)
        if isinstance(found, typer.Typer):
            found.rich_markup_mode = None
            command = typer.main.get_command(found)
            command.params = [one for one in command.params if one.name not in _COMPLETION]  # the root has them
        else:
            application = typer.Typer(add_completion=False, rich_markup_mode=None)
            application.command(epilog=getattr(sys.modules[found.__module__], "EPILOG", None))(found)
            command = typer.main.get_command(application)
        command.name = self.name
        return command

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Return the context of the command itself, which is then invoked instead of this one."""
        context = self.load().make_context(info_name, args, parent, **extra)
        for option in context.command.params:
            value = context.params.get(option.name)
            if isinstance(value, float) and not math.isfinite(value):  # NaN is below no minimum
                raise typer.BadParameter(f"expected a finite number, got {value}", context, option)
        return context


class _Root(TyperGroup):
    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self._sections = {one.words[0]: one.section for one in subcommands() if len(one.words) == 1}
        groups: dict[tuple[str, ...], TyperGroup] = {(): self}
        for one in sorted(subcommands()):  # a group before its sub-commands
            above, name = one.words[:-1], one.words[-1]
            if above not in groups or name in groups[above].commands:
                why = "it is there already" if above in groups else f"{' '.join(above)!r} is no group"
                raise ConfigError(f"sub-command {' '.join(one.words)!r} of {one.target}: {why}")
            groups[above].add_command(LazyCommand(one) if one.target else groups.setdefault(one.words, _group(one)))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for section in SECTIONS:
            names = [name for name in sorted(self.commands) if self._sections.get(name, "Deploy") == section]
            if names:
                with formatter.section(section):
                    formatter.write_dl([(name, self.commands[name].get_short_help_str(200)) for name in names])


def _group(subcommand: Subcommand) -> TyperGroup:
    return TyperGroup(
        name=subcommand.words[-1],
        help=subcommand.summary,
        short_help=subcommand.summary,
        no_args_is_help=True,
        rich_markup_mode=None,
    )


app = typer.Typer(
    name=NAME,
    cls=_Root,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # the import of Rich takes too long for a help
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback(help=ABOUT)
def options(
    wanted: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Take the options of the program itself."""


@app.command(help=f"Print the version.\n\nExample: {NAME} version")
def version() -> None:
    """Print the version."""
    typer.echo(facade.__version__)


def run() -> None:
    """Run the command line; an expected failure is one line, not a traceback."""
    # Otherwise Python prints each line of the Kafka client; long-running processes start their own logging.
    logging.getLogger("facade").addHandler(logging.NullHandler())
    try:
        app(prog_name=NAME)
    except ModuleNotFoundError as error:
        if not (line := advice(error)):
            raise
        fail(f"{error.name} is missing: {line}")
    except (FacadeError, OSError) as error:
        if isinstance(error, FacadeError):
            fail(str(error))
        if error.errno in (errno.ENOSPC, errno.EDQUOT):  # of a write, which names no file
            fail(f"{error.strerror}; make space where it writes, or name another path")
        if error.filename is None:
            raise  # a bug; an error with the name of a file or a folder is the caller's
        fail(f"{error.filename}: {error.strerror}; name another path")


def fail(text: str) -> NoReturn:
    """Print an error, and end the process."""
    typer.secho("error: ", fg="red", bold=True, err=True, nl=False)
    typer.echo(printable(text, keep="\n"), err=True)
    sys.exit(1)
