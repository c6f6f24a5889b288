"""Plays a calibration pipeline."""
