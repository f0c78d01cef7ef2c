"""Routers in a shard: the owner of their graph, and what each shard does for their ends (§6)."""
