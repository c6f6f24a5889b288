"""The results of a run as one HTML page that needs nothing else."""

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape

from clients.conformance.case import Result
from clients.conformance.options import Options
from clients.conformance.report import OUTCOMES, by_part, one_line

_WORDS = {"passed": "passed", "failed": "failed", "skipped": "not shown"}
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<style>
body {{ font: 14px/1.4 sans-serif; margin: 2em; max-width: 110em; }}
table {{ border-collapse: collapse; margin: 1em 0; }}
th, td {{ border: 1px solid #bbb; padding: .2em .6em; text-align: left; vertical-align: top; }}
td.number {{ text-align: right; }}
.failed {{ background: #fbd5d5; }}
.skipped {{ background: #fdf3cf; }}
.passed td.word {{ color: #176d2c; }}
</style>
</head>
<body>
<h1>{title}</h1>
<p>{about}</p>
<table>
<tr><th>part</th><th>passed</th><th>failed</th><th>not shown</th></tr>
{parts}
</table>
{sections}
</body>
</html>
"""


def page(results: Sequence[Result], options: Options, now: float) -> str:
    """Return the page: the counts of each part, then a line for each check."""
    failed = sum(result.outcome == "failed" for result in results)
    title = f"Conformance with the ICD: {f'{failed} failed' if failed else 'all passed that was shown'}"
    mode = "read-only and active" if options.active else "read-only"
    about = (
        f"Tango database {options.tango_host}, brokers {options.bootstrap}, topics {options.prefix}*; {mode};"
        f" {datetime.fromtimestamp(now, UTC):%Y-%m-%d %H:%M:%S} UTC; events observed for {options.window:g} s."
    )
    parts = "\n".join(
        f"<tr><td>{escape(part)}</td>{''.join(_number(counts[outcome]) for outcome in OUTCOMES)}</tr>"
        for part, counts in by_part(results).items()
    )
    sections = "\n".join(_section(part, results) for part in by_part(results))
    return _PAGE.format(title=escape(title), about=escape(about), parts=parts, sections=sections)


def _section(part: str, results: Sequence[Result]) -> str:
    lines = "\n".join(_line(result) for result in results if result.id.partition("/")[0] == part)
    head = "<tr><th>entry and aspect</th><th>result</th><th>measured, or what was expected and got</th></tr>"
    return f"<h2>{escape(part)}</h2>\n<table>\n{head}\n{lines}\n</table>"


def _line(result: Result) -> str:
    cells = f'<td class="word">{_WORDS[result.outcome]}</td><td>{escape(one_line(result.detail))}</td>'
    return f'<tr class="{result.outcome}"><td>{escape(result.id)}</td>{cells}</tr>'


def _number(count: int) -> str:
    return f'<td class="number">{count}</td>'
