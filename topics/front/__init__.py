"""HTTP: two lanes under one guard, one route table, one error map. Knows nothing of the disk."""
