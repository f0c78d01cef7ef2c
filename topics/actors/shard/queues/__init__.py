"""Queues of a shard: claims, acks and work streams (§10)."""
