"""The shards as a front sees them: links, calls, readiness and failures."""
