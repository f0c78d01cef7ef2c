"""Bytes at rest: log frames, records, segments, blobs."""
