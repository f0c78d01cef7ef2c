"""The rules of topics, without I/O. Time is an argument, and effects are returned as values."""
