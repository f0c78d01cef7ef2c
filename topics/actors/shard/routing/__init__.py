"""Routers in a shard (§6): the owner of their graph, workers at sources, copies into dests."""
