"""The SDK for SDP's controllers: handlers of commands, and the rules that make them safe."""
