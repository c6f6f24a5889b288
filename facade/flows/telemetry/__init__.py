"""Heap notifications: reduced by workers to mergeable partials, merged by device servers to readings."""
