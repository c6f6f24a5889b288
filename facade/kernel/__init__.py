"""What knows no flow: the bus, transactions, windows, the event loop, the interface as data, and the program."""
