"""RPC between processes: the message router of ADR 011, and the typed calls on top of it."""
