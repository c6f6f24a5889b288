"""The flows: one folder each, which plugs in by its manifest."""
