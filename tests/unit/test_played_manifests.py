"""What `make containers ARGS=--kube` plays: a pod for each replica, with the settings of the manifests."""

import yaml

from proving.containers.kube import played

RENDERED = """
kind: ConfigMap
metadata: {name: settings-1}
data: {SDP_TOPIC_PREFIX: local., TANGO_HOST: "database:10000"}
---
kind: StatefulSet
metadata: {name: aggregate}
spec:
  replicas: 2
  template: {metadata: {labels: {a: b}}, spec: {containers: [{name: facade}]}}
---
kind: Job
metadata: {name: topics}
spec: {template: {metadata: {}, spec: {restartPolicy: OnFailure}}}
---
kind: NetworkPolicy
metadata: {name: closed}
"""


def test_each_replica_is_a_pod_and_a_set_numbers_them() -> None:
    secret, settings, first, second, job = played(RENDERED)
    assert (secret["kind"], secret["metadata"]["name"]) == ("Secret", "sdp-facade")
    assert settings["data"] == {"SDP_TOPIC_PREFIX": "containers.", "TANGO_HOST": "database:10000"}
    assert [one["metadata"]["name"] for one in (first, second, job)] == ["aggregate-0", "aggregate-1", "topics"]
    assert second["metadata"]["labels"] == {"a": "b", "apps.kubernetes.io/pod-index": "1"}
    assert job["spec"] == {"restartPolicy": "OnFailure"}
    assert list(yaml.safe_load_all(RENDERED))[1]["spec"]["template"]["metadata"]["labels"] == {"a": "b"}
