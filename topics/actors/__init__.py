"""Rings, mailboxes and the shard loop. Knows nothing of HTTP."""
