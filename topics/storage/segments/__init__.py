"""Segments: sealed records, sorted by topic, in files that are read in place."""
