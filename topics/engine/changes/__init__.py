"""Changes of topics: one module per kind, with its decision, frames, commit, undo and replay."""
