"""Apache Kafka behind the Protocols of `facade.kernel.bus.port`; the only package that imports its client."""
