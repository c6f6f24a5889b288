"""The event loop of a device server and the transaction loop of a worker, with their common parts."""
