"""The message bus: what the rest of the package needs of it, Kafka itself, and one in memory."""
