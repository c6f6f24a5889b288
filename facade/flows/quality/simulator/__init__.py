"""Plays a quality pipeline."""
