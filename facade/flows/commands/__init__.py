"""Commands: from a Tango call to a durable record, and from acknowledgements to one final outcome."""
