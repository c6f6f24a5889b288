"""``sdp-facade icd diff``: the differences of two interfaces, their effects, and the version that they need."""

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
from facade.icd.diff import Difference, VersionStep, compare, compare_avro, judge_version
from facade.icd.model import Icd
from facade.icd.read import read
from facade.resources import resource

_SCHEMAS = "schemas"
_MEANINGS = {VersionStep.MAJOR: "breaking", VersionStep.MINOR: "added", VersionStep.PATCH: "text only"}


def diff_command(
    old: Annotated[str, typer.Argument(help="Folder with icd/, messages/ and commands/, or a git revision.")],
    new: Annotated[str | None, typer.Argument(help="The same.", show_default="the shipped schemas")] = None,
) -> None:
    """List the differences of two interfaces with the parties that they break, and check the version in icd.toml.

    Exits with 1 if the version has made too small a step: a breaking difference asks for a major one (below 1.0.0, for
    a minor one), an addition for a minor one, and a text for a patch.

    Examples: sdp-facade icd diff HEAD, sdp-facade icd diff v0.2.0 v0.3.0, sdp-facade icd diff /old/schemas schemas
    """
    with _folder(old) as before, _folder(new) as after:
        earlier, later = _interface(before, old), _interface(after, new or _SCHEMAS)
        differences = [*compare(earlier, later), *compare_avro(before, after)]
    differences.sort(key=lambda one: -one.step)
    if differences:
        wide().print(_table(differences))
    is_enough, sentence = judge_version(earlier.version, later.version, differences)
    OUT.print(sentence)
    if not is_enough:
        raise typer.Exit(1)


@contextmanager
def _folder(given: str | None) -> Iterator[Path]:
    """Return the folder of an interface; the one of a git revision is there only for as long as it is needed."""
    if given is None:
        yield resource(_SCHEMAS)
    elif Path(given).is_dir():
        yield Path(given)
    else:
        git = ("git", "archive", "--format=zip", f"{'' if given.startswith('-') else given}:{_SCHEMAS}")
        with TemporaryDirectory(prefix="sdp-facade-icd-") as folder:
            try:
                done = subprocess.run(git, check=True, capture_output=True)
                ZipFile(io.BytesIO(done.stdout)).extractall(folder)
            except (OSError, subprocess.CalledProcessError) as error:
                said = str(getattr(error, "stderr", b"").decode(errors="replace") or error).strip().replace("\n", "; ")
                what = f"expected a folder or a git revision with {_SCHEMAS}/, got {given!r}: {said}"
                raise ConfigError(what) from error
            yield Path(folder)


def _interface(folder: Path, name: str) -> Icd:
    """Read an interface without all checks: an old one need not pass those of today."""
    icd, findings = read(folder)
    if icd is None:
        raise IcdError("\n".join(f"{name}: {finding}" for finding in findings))
    return icd


def _table(differences: Iterable[Difference]) -> Table:
    """Return a row for each difference; those that only a number tells apart, such as all dishes', share one."""
    alike: dict[object, list[Difference]] = {}
    for one in differences:
        alike.setdefault((one.step, one.whom, one.what, re.sub(r"\d+", "#", one.where)), []).append(one)
    rows = []
    for one, *more in alike.values():
        where = f"{one.where} (and {len(more)} like it)" if more else one.where
        rows.append((f"{one.step.name.lower()}: {_MEANINGS[one.step]}", ", ".join(one.whom), where, one.what))
    return table(("step", "for", "where", "what"), rows, title="Differences of the interface")
