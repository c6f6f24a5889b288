"""The command ``sdp-facade``: its sub-commands by name, each imported when it is run.

The imports of a sub-command may take longer than its work, and than a supervisor allows for a restart. So the help of a
group comes from tables: the one below, those of the flows' manifests, and those of the entry-point group
`facade.kernel.manifest.SUBCOMMANDS`.
"""

import logging
import sys
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

import facade
from facade.kernel.errors import ConfigError, FacadeError
from facade.kernel.manifest import SECTIONS, Subcommand, load, subcommands
from facade.kernel.printable import printable

NAME: Final = "sdp-facade"

OWN: Final = (
    Subcommand(("audit",), "facade.tools.audit:audit", "List by time who commanded, acted on alarms, or set modes."),
    Subcommand(("bus",), "", "Look at the Kafka bus.", section="Deploy"),
    Subcommand(("bus", "check"), "facade.tools.bus:check", "Show the faults of the bus, and what to do."),
    Subcommand(("config",), "", "Look at the settings, and where they come from.", section="Deploy"),
    Subcommand(
        ("config", "check"), "facade.kernel.cli.config:check", "Show each setting, its origin, and all that is wrong."
    ),
    Subcommand(
        ("config", "template"), "facade.kernel.cli.config:print_template", "Print a settings file with the defaults."
    ),
    Subcommand(("dead-letters",), "", "Look through records that could not be used, and put them back."),
    Subcommand(("dead-letters", "export"), "facade.tools.dead_letters:export", "Write dead letters to a file."),
    Subcommand(("dead-letters", "list"), "facade.tools.dead_letters:list_dead_letters", "List dead letters by time."),
    Subcommand(("dead-letters", "redrive"), "facade.tools.dead_letters:redrive", "Put dead letters back, each once."),
    Subcommand(("dead-letters", "show"), "facade.tools.dead_letters:show", "Show one dead letter with what is in it."),
    Subcommand(("icd",), "", "Look at the interface (ICD) and check it.", section="Develop"),
    Subcommand(("icd", "check"), "facade.tools.icd:check_command", "Check that the interface is complete."),
    Subcommand(("icd", "diff"), "facade.tools.icd_diff:diff_command", "Say what a change of the interface breaks."),
    Subcommand(
        ("icd", "export"), "facade.tools.icd:export_command", "Make all files that are derived from the interface."
    ),
    Subcommand(("icd", "show"), "facade.tools.icd:show_command", "Show the attributes and commands of a device class."),
    Subcommand(("infra",), "", "Run Kafka and a Tango database on this machine.", section="Deploy"),
    Subcommand(("infra", "up"), "facade.tools.infra:up", "Start what does not run yet."),
    Subcommand(("infra", "status"), "facade.tools.infra:status", "Show each process."),
    Subcommand(("infra", "down"), "facade.tools.infra:down", "Stop what was started here."),
    Subcommand(("infra", "env"), "facade.tools.infra:env", "Print the environment variables for a shell."),
    Subcommand(("infra", "renew"), "facade.tools.infra:renew", "Give a secured broker a new certificate."),
    Subcommand(("infra", "secrets"), "facade.tools.infra:secrets", "Make certificates and logins for other brokers."),
    Subcommand(("infra", "start"), "facade.tools.infra:start", "Start one service again."),
    Subcommand(("infra", "stop"), "facade.tools.infra:stop", "Stop one service; its port and data are kept."),
    Subcommand(("quotas",), "", "Limit the write rates of clients, by the classes of their topics.", section="Deploy"),
    Subcommand(("quotas", "apply"), "facade.tools.quotas:apply", "Set the quotas with Kafka's own tool."),
    Subcommand(("quotas", "check"), "facade.tools.quotas:check", "Say how the brokers' quotas differ from the plan."),
    Subcommand(("quotas", "plan"), "facade.tools.quotas:plan", "Print the commands that set the quotas."),
    Subcommand(("rights",), "", "Give each role of the ICD its rights on the bus, and no others.", section="Deploy"),
    Subcommand(("rights", "apply"), "facade.tools.rights:apply", "Give the rights at the brokers."),
    Subcommand(("rights", "check"), "facade.tools.rights:check", "Say how the brokers' rights differ from the ICD."),
    Subcommand(("rights", "export"), "facade.tools.rights:export", "Print the rights, for people or for other tools."),
    Subcommand(("simulate",), "", "Simulate parts of SDP, with an exact account of what was sent.", section="Publish"),
    Subcommand(("topics",), "", "Create or delete the ICD's topics.", section="Deploy"),
    Subcommand(("topics", "create"), "facade.tools.topics:create", "Create the topics that are missing."),
    Subcommand(("topics", "delete"), "facade.tools.topics:delete", "Delete all topics of a deployment."),
)
"""Sub-commands of the facade as a whole."""

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
        return self.load().make_context(info_name, args, parent, **extra)


class _Root(TyperGroup):
    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self._sections = {one.words[0]: one.section for one in (*OWN, *subcommands()) if len(one.words) == 1}
        groups: dict[tuple[str, ...], TyperGroup] = {(): self}
        for one in sorted((*OWN, *subcommands())):  # a group before its sub-commands
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


@app.callback()
def options(
    wanted: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Tango facade of the SKA Science Data Processor's Kafka bus."""


@app.command()
def version() -> None:
    """Print the version.

    Example: sdp-facade version
    """
    typer.echo(facade.__version__)


def run() -> None:
    """Run the command line; an expected failure is one line, not a traceback."""
    # Otherwise Python prints each line of the Kafka client; long-running processes start their own logging.
    logging.getLogger("facade").addHandler(logging.NullHandler())
    try:
        app(prog_name=NAME)
    except (FacadeError, OSError) as error:
        if isinstance(error, OSError) and error.filename is None:
            raise  # a bug; an error with the name of a file or a folder is the caller's
        text = f"{error.filename}: {error.strerror}; name another path" if isinstance(error, OSError) else str(error)
        typer.secho("error: ", fg="red", bold=True, err=True, nl=False)
        typer.echo(printable(text, keep="\n"), err=True)
        sys.exit(1)
