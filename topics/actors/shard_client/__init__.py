"""Client of the shards, for the front: links, calls, readiness and failures."""
