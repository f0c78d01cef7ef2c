"""The write-ahead log of a shard: its files, its writer threads, and the blobs of its frames."""
