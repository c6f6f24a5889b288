"""The flows: each folder is one, with everything that belongs to it, and plugs in by its manifest."""
