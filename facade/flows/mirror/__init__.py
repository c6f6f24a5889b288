"""The telescope model: Tango attributes of the telescope, mirrored to the bus."""
