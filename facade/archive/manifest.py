"""The archive: records of all topics, kept as Parquet files, and the history of attributes among them."""

from facade.kernel.manifest import FlowPage, Isolation, Manifest, Subcommand

MANIFEST = Manifest(
    name="archive",
    summary="Records of all topics as Parquet files, by topic and hour, each exactly once.",
    device_classes={"SdpArchive": "devices.archive:SdpArchive"},
    topics={
        "history": Isolation.READ_COMMITTED,
        "archive-reports": Isolation.READ_COMMITTED,
        "replay": Isolation.READ_COMMITTED,
    },
    interface=":archive",
    compose="facade.archive.flow:compose",
    for_all=True,
    processes={"archive-run": ("archive", "run", "FOLDER")},
    page=FlowPage(title="Archive"),
    conformance="sdp_facade_clients.conformance.devices:ARCHIVE",
    subcommands=(
        Subcommand(
            ("archive",),
            "",
            "Keep records as Parquet files; verify, export, replay and restore them.",
            section="Deploy",
        ),
        Subcommand(("archive", "run"), "facade.archive.cli:run", "Write topics to an archive."),
        Subcommand(("archive", "verify"), "facade.archive.cli:verify", "Look for gaps, overlaps and damage."),
        Subcommand(("archive", "export"), "facade.archive.cli:export", "Write a part of an archive as NeXus."),
        Subcommand(("archive", "replay"), "facade.archive.replay_cli:replay", "Play an archive again elsewhere."),
        Subcommand(
            ("archive", "replay-control"),
            "facade.archive.replay_cli:control",
            "Pause a replay that runs, let it go on, or go to a later time.",
        ),
        Subcommand(("archive", "compare"), "facade.archive.replay_cli:compare", "Compare what two archives derived."),
        Subcommand(
            ("archive", "restore"),
            "facade.archive.restore_cli:restore_topics",
            "Fill empty topics from an archive.",
        ),
        Subcommand(
            ("archive", "unarchived"),
            "facade.archive.unarchived:list_unarchived",
            "List what brokers have and an archive lacks.",
        ),
        Subcommand(("report",), "facade.archive.cli:report", "Write the report of a night, from an archive."),
        Subcommand(
            ("history",),
            "facade.archive.cli:history",
            "Print, draw or compare what an archive has of attributes.",
        ),
    ),
)
