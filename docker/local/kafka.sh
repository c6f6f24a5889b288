#!/bin/sh
# As the official image does: KAFKA_A_B___C=d becomes a.b-c=d, the storage is formatted once, the broker becomes process 1.
set -eu
properties=/opt/kafka/config/server.properties
env | sed -n -E '/^KAFKA_(HEAP_OPTS|OPTS)=/d; s/^KAFKA_([A-Z0-9_]+)=(.*)/\1 \2/p' | while read -r key value; do
  printf '%s=%s\n' "$(printf '%s' "$key" | tr 'A-Z_' 'a-z.' | sed 's/\.\.\./-/g')" "$value"
done >"$properties"
java -cp '/opt/kafka/libs/*' kafka.tools.StorageTool format --ignore-formatted --cluster-id "$CLUSTER_ID" --config "$properties"
# The heap is words, of which each is an option.
# shellcheck disable=SC2086
exec java ${KAFKA_HEAP_OPTS:-} -XX:+UseG1GC -XX:+ExitOnOutOfMemoryError -Djava.awt.headless=true \
  -Dlog4j2.configurationFile=/opt/kafka/config/log4j2.yaml -cp '/opt/kafka/libs/*' kafka.Kafka "$properties"
