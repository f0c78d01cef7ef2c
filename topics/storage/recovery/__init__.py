"""Recovery: opens and repairs a shard's data, which is its checkpoints, segments, log and blobs."""
