"""Bytes of clients: request bodies, answers, watch options, WebSocket frames."""
