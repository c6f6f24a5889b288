"""What runs inside a device server: one thread that reads the bus and pushes what has changed."""
