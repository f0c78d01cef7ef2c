"""One shard at work: its loop, and what is attached to it."""
