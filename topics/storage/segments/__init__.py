"""Sealed records, by topic."""
