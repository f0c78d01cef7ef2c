"""Conversion between bytes and values, without clocks, files or tasks."""
