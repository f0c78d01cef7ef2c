"""RPC between processes: the message router (`decisions/0003`) and the typed calls on top of it."""
