"""What the AsyncAPI document says of logs and metrics."""

from typing import Any

from facade.manifest import Part, Words


def _foreign(name: str, description: str) -> dict[str, Any]:
    return {
        "name": name,
        "title": name,
        "description": description,
        "contentType": "application/octet-stream",
        "payload": {
            "schemaFormat": "application/vnd.aai.asyncapi+json;version=3.0.0",
            "schema": {"type": "string", "format": "binary"},
        },
    }


WORDS = Words(
    introduction=(
        "You have logs or metrics of a node: let a shipper write `logs` and `metrics`, in a format that it has.",
    ),
    parts=(
        Part("send", "logs", "Ship the logs of a node: syslog, OTLP, JSON of Logstash, or SKA's log form."),
        Part("receive", "logs", "Take records of logs to sum them up."),
        Part("send", "metrics", "Ship the metrics of a node: JSON of collectd, or OTLP."),
        Part("receive", "metrics", "Take metrics of nodes for their newest values."),
        Part("send", "logs.summary", "Write what a transaction found in logs and metrics."),
        Part("receive", "logs.summary", "Add up what workers found (read committed)."),
    ),
    messages={
        "logs": lambda: _foreign(
            "Log",
            "A record of a log, as a shipper writes it: a message of syslog (RFC 5424 or 3164), a request of OTLP in"
            " JSON or protobuf, a JSON object of Logstash or Filebeat, or a line of SKA's log form.",
        ),
        "metrics": lambda: _foreign(
            "Metrics",
            "Metrics as a shipper writes them: an array of collectd's JSON, an object of Metricbeat's, or a"
            " request of OTLP in JSON or protobuf.",
        ),
    },
    examples={
        "log-summary": {
            "schema": "log-summary/1",
            "worker": "logs-aggregate-0",
            "stream": "logs",
            "partition": 0,
            "log": "Zb8l1vXzQoqd2H0gq7RkQA",
            "offset_from": 4100,
            "offset_to": 4141,
            "part": 0,
            "counts": [
                {
                    "component": "flagger",
                    "severity": 5,
                    "host": "node-0007",
                    "rack": "r01",
                    "observation": "eb-test-20261123-00001",
                    "count": 41,
                    "time_min": 1795276800000000,
                    "time_max": 1795276800900000,
                }
            ],
            "errors": [
                {
                    "time": 1795276800000000,
                    "severity": 5,
                    "component": "flagger",
                    "host": "node-0007",
                    "text": "no room for flags of channel 17",
                }
            ],
        }
    },
    keys={"log-summary": "logs/0"},
)
