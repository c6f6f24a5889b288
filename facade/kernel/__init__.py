"""What knows no word of SDP: the bus, transactions, windows, the event loop, the interface as data, and the program."""
