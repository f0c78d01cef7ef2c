"""Routers in a shard (§6): the owner of the graph, workers for sources, and forwards to dests."""
