"""The reference controller."""
