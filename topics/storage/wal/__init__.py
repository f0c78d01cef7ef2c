"""The write-ahead log of a shard: files, writer threads, blobs beside it."""
