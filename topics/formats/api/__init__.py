"""The bytes of the API: request bodies, responses, watch options, WebSocket frames."""
