"""Files: the write-ahead log, checkpoints, recovery. Knows nothing of HTTP and rings."""
