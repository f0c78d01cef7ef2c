"""Watch and WebSocket: streams, their pages and sessions."""
