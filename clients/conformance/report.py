"""The reports of a run: a table on the terminal, JUnit XML, and one HTML page without other files."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from xml.etree import ElementTree as Xml

from clients.conformance.checks import CheckOptions, CheckResult
from facade.console import Console, table
from facade.printable import printable

_WORDS = {"passed": "passed", "failed": "failed", "skipped": "not shown"}
"""Outcomes, in the words of the reports."""
_MOST_REASONS = 12
_STYLE = """
body { font: 14px/1.4 sans-serif; margin: 2em; max-width: 110em; }
table { border-collapse: collapse; margin: 1em 0; }
th, td { border: 1px solid #bbb; padding: .2em .6em; text-align: left; vertical-align: top; }
.failed { background: #fbd5d5; }
.skipped { background: #fdf3cf; }
"""


def print_report(console: Console, results: Sequence[CheckResult], seconds: float) -> None:
    """Print each failure, the reasons of checks that are not shown, and the counts by class."""
    lines = [("FAILED", f"{one.id}: {_line(one.detail)}", "bold red") for one in results if one.outcome == "failed"]
    reasons = Counter(_line(result.detail) for result in results if result.outcome == "skipped")
    lines += [("not shown", f"{count} x {reason}", "yellow") for reason, count in reasons.most_common(_MOST_REASONS)]
    if len(reasons) > _MOST_REASONS:
        lines.append(("not shown", f"{len(reasons) - _MOST_REASONS} more reasons; see --html", "yellow"))
    for word, text, style in lines:
        console.print(word, style=style, end="  ")
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    *rows, sums = _counts(results)
    verdict = f"{sums[2]} failed" if sums[2] != "0" else "conforms, as far as it was shown"
    caption = f"{len(results)} checks in {seconds:.0f} s"
    shown = table(("part", *_WORDS.values()), rows, title=f"conformance: {verdict}", caption=caption)
    for column in shown.columns[1:]:
        column.justify = "right"
    shown.add_row(*sums, style="bold")
    console.print(shown)


def write_junit(path: Path, results: Sequence[CheckResult]) -> None:
    """Write the older form of JUnit's XML, which has a place for the measured value."""
    tags = {"failed": "failure", "skipped": "skipped"}
    failures, skipped = (str(sum(result.outcome == one for result in results)) for one in tags)
    numbers = {"tests": str(len(results)), "errors": "0", "failures": failures, "skipped": skipped}
    root = Xml.Element("testsuites")
    seconds = f"{sum(result.seconds for result in results):.3f}"
    suite = Xml.SubElement(root, "testsuite", numbers, name="conformance", time=seconds)
    for result in results:
        attributes = {"classname": "entries", "name": f"test_icd[{result.id}]", "time": f"{result.seconds:.3f}"}
        case, detail = Xml.SubElement(suite, "testcase", attributes), printable(result.detail, keep="\n")
        if result.outcome == "passed":
            Xml.SubElement(Xml.SubElement(case, "properties"), "property", name="measured", value=detail)
        else:
            Xml.SubElement(case, tags[result.outcome], message=detail).text = detail
    Xml.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def write_html(path: Path, results: Sequence[CheckResult], options: CheckOptions, now: float) -> None:
    """Write the counts of each part, and a line for each check."""
    *parts, sums = _counts(results)
    title = f"Conformance with the ICD: {'all passed that was shown' if sums[2] == '0' else f'{sums[2]} failed'}"
    about = (
        f"Tango database {options.tango_host}, brokers {options.bootstrap}, topics {options.prefix}*;"
        f" {'read-only and active' if options.active else 'read-only'};"
        f" {datetime.fromtimestamp(now, UTC):%Y-%m-%d %H:%M:%S} UTC; events observed for {options.window:g} s."
    )
    rows = [(one.outcome, (one.id, _WORDS[one.outcome], _line(one.detail))) for one in results]
    text = "\n".join(
        (
            f'<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{escape(title)}</title>',
            f"<style>{_STYLE}</style></head>\n<body>\n<h1>{escape(title)}</h1>\n<p>{escape(about)}</p>",
            _html_table(("part", *_WORDS.values()), [("", part) for part in parts]),
            _html_table(("entry and aspect", "result", "measured, or expected and got"), rows),
            "</body>\n</html>\n",
        )
    )
    path.write_text(text, encoding="utf-8")


def _html_table(headings: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    lines = [f"<tr>{''.join(f'<th>{escape(one)}</th>' for one in headings)}</tr>"]
    lines += [f'<tr class="{kind}">{"".join(f"<td>{escape(cell)}</td>" for cell in row)}</tr>' for kind, row in rows]
    return "\n".join(("<table>", *lines, "</table>"))


def _counts(results: Sequence[CheckResult]) -> list[tuple[str, ...]]:
    """Return the counts of each outcome in each part of the ICD, and the sums."""
    found: dict[str, Counter[str]] = {}
    for result in results:
        found.setdefault(result.id.partition("/")[0], Counter())[result.outcome] += 1
    found["all"] = Counter(result.outcome for result in results)
    return [(part, *(str(counts[outcome]) for outcome in _WORDS)) for part, counts in found.items()]


def _line(text: str) -> str:
    return " ".join(text.split())
