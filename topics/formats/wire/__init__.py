"""Bytes between processes: ring messages and envelopes."""
