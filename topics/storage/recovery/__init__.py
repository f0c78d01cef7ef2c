"""Recovery: how a shard's data is opened, from checkpoint, segments, log and blobs."""
