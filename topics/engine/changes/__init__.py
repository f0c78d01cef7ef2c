"""Changes of topics. There is one module for each kind, with its decision, frames, commit, undo and
replay.
"""
