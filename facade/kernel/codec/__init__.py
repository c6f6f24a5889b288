"""Messages on the bus: from JSON Schema to a fast decoder, and the slow reference it must agree with."""
