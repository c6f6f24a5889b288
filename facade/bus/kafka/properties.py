"""Whether the Kafka client knows and takes further properties, without a broker."""

from collections.abc import Iterator, Mapping

from confluent_kafka import KafkaException, Producer

from facade.config import HIDDEN, is_secret
from facade.errors import ConfigError


def refusals(properties: Mapping[str, str]) -> Iterator[str]:
    """Return the properties that the client refuses, or the refusal of all together; without secrets."""
    whole = _refusal(properties)
    if not whole:
        return
    # One that needs another one is refused by itself as well; only where its own name is the reason, it is the reason.
    alone = {name: _refusal({name: value}) for name, value in properties.items()}
    named = {name: text for name, text in alone.items() if f'"{name}"' in text}
    for name, text in (named or {"all together": whole}).items():
        for secret in (value for key, value in properties.items() if is_secret(key) and value):
            text = text.replace(secret, HIDDEN)
        yield f"kafka: {name}: expected what librdkafka takes, got: {text}"


def require_usable(properties: Mapping[str, str]) -> None:
    """Make sure that the client takes all properties.

    Raises
    ------
    ConfigError
        It does not; the message names each.
    """
    if properties and (wrong := list(refusals(properties))):
        raise ConfigError(f"settings: {'; '.join(wrong)}; see all of them with `sdp-facade config check`")


def _refusal(properties: Mapping[str, str]) -> str:
    try:
        Producer({**properties, "log_level": 0})
    except KafkaException as error:
        return str(error.args[0].str())
    return ""
