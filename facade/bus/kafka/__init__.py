"""Apache Kafka behind the Protocols of `facade.bus.port`; the only package that imports its client."""
