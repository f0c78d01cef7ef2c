"""Sealing: moves records from the log into segments, writes checkpoints, reclaims disk space."""
