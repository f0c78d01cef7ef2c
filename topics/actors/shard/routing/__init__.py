"""Routing: the routers of a shard, as the source's side, the dest's side and the graph's owner."""
