"""Changes of topics: one module per kind, with its decision, its frames, commit, undo and replay."""
