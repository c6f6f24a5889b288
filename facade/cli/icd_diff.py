"""``sdp-facade icd diff``: what a change of the interface breaks, for whom, and whether its version says so."""

import io
import re
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated
from zipfile import ZipFile

import typer
from rich.table import Table

from facade.console import OUT, table, wide
from facade.errors import ConfigError, IcdError
from facade.icd.diff import Verdict, compare, compare_avro, verdict
from facade.icd.diff_rules import MEANINGS, Difference, Step
from facade.icd.model import Icd
from facade.icd.read import read
from facade.resources import resource

_SCHEMAS = "schemas"


def diff_command(
    old: Annotated[str, typer.Argument(help="Folder with icd/, messages/ and commands/, or a git revision.")],
    new: Annotated[str | None, typer.Argument(help="The same.", show_default="the shipped schemas")] = None,
) -> None:
    """Say what differs between two interfaces, whom it breaks, and whether the version in icd.toml says so.

    Exits with 1 if the version has made too small a step: what breaks somebody asks for a major one (below 1.0.0, for a
    minor one), what is added for a minor one, what is only text for a patch.

    Examples: sdp-facade icd diff HEAD, sdp-facade icd diff v0.2.0 v0.3.0, sdp-facade icd diff /old/schemas schemas
    """
    with _folder(old) as before, _folder(new) as after:
        earlier, later = _interface(before, old), _interface(after, new or _SCHEMAS)
        differences = [*compare(earlier, later), *compare_avro(before, after)]
    differences.sort(key=lambda one: -one.change.step)
    if differences:
        wide().print(_table(differences))
    judged = verdict(earlier.version, later.version, differences)
    OUT.print(_in_words(judged, earlier.version, later.version))
    if not judged.enough:
        raise typer.Exit(1)


@contextmanager
def _folder(given: str | None) -> Iterator[Path]:
    """Return the folder that is meant; that of a git revision is there only for as long as it is needed."""
    if given is None:
        yield resource(_SCHEMAS)
    elif Path(given).is_dir():
        yield Path(given)
    else:
        with TemporaryDirectory(prefix="sdp-facade-icd-") as folder:
            with ZipFile(io.BytesIO(_archive(given))) as archive:
                archive.extractall(folder)
            yield Path(folder) / _SCHEMAS


def _archive(revision: str) -> bytes:
    """Return the schemas of a git revision of the repository that we are in, as a zip archive."""
    try:
        top = _git("rev-parse", "--show-toplevel").decode().strip()
        commit = _git("rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}").decode().strip()
        return _git("-C", top, "archive", "--format=zip", commit, _SCHEMAS)
    except FileNotFoundError:
        raise ConfigError(f"expected a folder, or git for a revision, got {revision!r} and no git") from None
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip().replace("\n", "; ")
        raise ConfigError(f"expected a folder or a git revision with {_SCHEMAS}/, got {revision!r}: {said}") from error


def _git(*arguments: str) -> bytes:
    return subprocess.run(("git", *arguments), check=True, capture_output=True).stdout


def _interface(folder: Path, name: str) -> Icd:
    """Read an interface without all checks: an old one need not pass those of today."""
    icd, findings = read(folder)
    if icd is None:
        raise IcdError("\n".join(f"{name}: {finding}" for finding in findings))
    return icd


def _table(differences: Iterable[Difference]) -> Table:
    rows = []
    for one, more in _alike(differences):
        step = f"{one.change.step.name.lower()}: {MEANINGS[one.change.step]}"
        where = f"{one.where} (and {more} like it)" if more else one.where
        rows.append((step, ", ".join(one.change.whom), where, one.change.what))
    return table(("step", "for", "where", "what"), rows, title="Differences of the interface")


def _alike(differences: Iterable[Difference]) -> list[tuple[Difference, int]]:
    """Put together what differs only in a number, such as the attributes of all dishes, and count the rest of them."""
    found: dict[object, tuple[Difference, int]] = {}
    for one in differences:
        key = (one.change, re.sub(r"\d+", "#", one.where))
        first, count = found.get(key, (one, -1))
        found[key] = (first, count + 1)
    return list(found.values())


def _in_words(judged: Verdict, old: str, new: str) -> str:
    made = f"{old} -> {new}: {'no step forward' if judged.made is Step.NONE else _step(judged.made)}"
    if judged.needed is Step.NONE:
        return f"no differences; version {made}"
    enough = "which is enough" if judged.enough else f"which is too small: raise version in {_SCHEMAS}/icd/icd.toml"
    return f"needed: {_step(judged.needed)} ({judged.why}); version {made}, {enough}"


def _step(step: Step) -> str:
    return f"a {step.name.lower()} step"
