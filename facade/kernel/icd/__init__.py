"""The interface (ICD) as data: device classes, attributes, topics and messages, stated once."""
