"""Pressure: what a front does when it, or a shard, has more to do than it can (decision 0030)."""
