"""Live delivery: watch streams, work streams and WebSockets, with their feeds and sessions."""
