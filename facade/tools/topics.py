"""``sdp-facade topics``: the ICD's topics on a broker."""

from typing import Annotated

import typer

from facade.admin.bus_checks import used_by
from facade.admin.topics import create_topics, delete_topics
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.config import load_settings
from facade.kernel.console import ERR, OUT
from facade.kernel.errors import ConfigError
from facade.kernel.icd.load import load

ReplicasOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Brokers that have each topic; all but one of them must confirm a record."
        " Default: the setting topic_replicas (SDP_TOPIC_REPLICAS).",
    ),
]


def create(replicas: ReplicasOption = None) -> None:
    """Create the topics that are missing, and say how the others differ from the ICD and in their replicas.

    What exists is never changed. Exits with 1 if something differs.

    Example: KAFKA_BOOTSTRAP=127.0.0.1:9092 SDP_TOPIC_PREFIX=test. sdp-facade topics create --replicas 3
    """
    settings, icd = load_settings(), load()
    wanted = settings.topic_replicas if replicas is None else replicas
    differences = create_topics(Connection(settings), icd.topics, replicas=wanted)
    for difference in differences:
        ERR.print(f"differs: {difference}", markup=False)
    if differences:
        raise typer.Exit(1)
    unused = sorted(icd.topics.keys() - used_by(settings, icd).topics.keys())
    OUT.print(
        f"{len(icd.topics)} topics with the prefix {settings.prefix!r} are as the ICD says, with replicas: {wanted}"
        + (f"; the settings use all but {', '.join(unused)}" if unused else "")
    )


def delete(prefix: Annotated[str, typer.Argument(help="Prefix of the deployment, as a confirmation.")]) -> None:
    """Delete the ICD's topics of a deployment, with all their records, with an administrator's login.

    Other topics are kept, also those that begin with the same prefix. Stop all programs of the deployment first.

    Example: SDP_TOPIC_PREFIX=replay. sdp-facade topics delete replay.
    """
    settings = load_settings()
    if prefix != settings.prefix:
        raise ConfigError(f"prefix: expected that of the settings, {settings.prefix!r}, got {prefix!r:.100}")
    OUT.print(f"{delete_topics(Connection(settings), load().topics)} topics deleted", markup=False)
