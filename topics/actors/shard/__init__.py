"""A running shard: its loop, and the services that are attached to it."""
