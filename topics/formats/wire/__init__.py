"""What travels between processes: ring messages, RPC envelopes, the calls table."""
