"""What talks to the devices through Tango: the live view, alert subscription, the conformance kit."""
