"""Tables while everything is killed: each is announced once and whole, or reported as never completed."""
