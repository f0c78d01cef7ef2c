"""Segments: files of sealed records, sorted by topic and read in place."""
