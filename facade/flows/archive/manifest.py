"""The archive: records of all topics, kept as Parquet files, and the history of attributes among them."""

from facade.manifest import Isolation, Manifest, Subcommand

MANIFEST = Manifest(
    name="archive",
    summary="Records of all topics as Parquet files, by topic and hour, each exactly once.",
    topics={"history": Isolation.READ_COMMITTED},
    compose="facade.flows.archive.recording:compose",
    for_all=True,
    subcommands=(
        Subcommand(("archive",), "", "Keep records as Parquet files, and verify the files.", section="Deploy"),
        Subcommand(("archive", "run"), "facade.flows.archive.cli:run", "Write topics to an archive."),
        Subcommand(("archive", "verify"), "facade.flows.archive.cli:verify", "Look for gaps, overlaps and damage."),
        Subcommand(
            ("history",), "facade.flows.archive.cli:history", "Print or draw what attributes showed, from an archive."
        ),
    ),
)
