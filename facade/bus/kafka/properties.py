"""Whether the Kafka client knows and takes further properties, without a broker."""

from collections.abc import Mapping

from confluent_kafka import KafkaException, Producer


def refusal(properties: Mapping[str, str]) -> str:
    """Say why the client does not take some properties; nothing: it takes them.

    The text may hold their values.
    """
    try:
        Producer({**properties, "log_level": 0})
    except KafkaException as error:
        return str(error.args[0].str())
    return ""
