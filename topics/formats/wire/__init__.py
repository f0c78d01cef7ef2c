"""Messages between processes: ring messages, RPC envelopes, the table of calls."""
