"""Bytes to values and back. Knows no clock, no file, no task."""
