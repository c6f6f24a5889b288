"""The linter of prose finds the sentences that made readers stop, and leaves alone what they should have been."""

import pytest

from tests.prose.style import load

STYLE = load()
SENTENCES = [
    ("told", "It has one if it is told later.", "It sounds if it becomes visible to the operator later."),
    ("told", "The first one serves, as no server is heard of.", "The first process takes over without a heartbeat."),
    ("told", "A late command is not begun.", "A command that arrives too late is rejected."),
    ("told", "Tango itself tells only the second.", "Tango itself provides only the host and process."),
    ("into", "A login of the site belongs into the proxy.", "Configure your site's single sign-on in the proxy."),
    ("goes_on", "A server that goes on after a kill ends.", "If a suspended server resumes, it exits with code 1."),
    ("repeated", "A record that comes again is not an alert.", "A byte-identical repeat of a record is ignored."),
    ("from_when", "An alarm tells from when on records are missing.", "An alarm gives the time after which they are."),
    ("stands", "This command does what stands here.", "This command runs every command on this page."),
    ("stands", "A worker stood still for an hour.", "The other process stands by, and two kinds cannot be told apart."),
    (
        "another_than",
        "After another state than READY, it ends.",
        "It ends after any state but READY.",
    ),
    (
        "of_chain",
        "The end of the log of the worker of a rack.",
        "The end of a worker's log, for one of the racks.",
    ),
]


@pytest.mark.parametrize(("rule", "found", "better"), SENTENCES, ids=[found for _, found, _ in SENTENCES])
def test_a_habit_of_translated_prose_is_found_and_plain_prose_is_not(rule: str, found: str, better: str) -> None:
    assert [one.rule for one in STYLE.findings(found)] == [rule]
    assert STYLE.findings(better) == []
