"""The message bus: its Protocols, Kafka behind them, and a bus in memory for tests."""
