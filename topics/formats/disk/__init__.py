"""The bytes of data files: log frames, records, segments, blobs."""
