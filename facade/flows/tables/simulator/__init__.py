"""A simulated calibration pipeline."""
