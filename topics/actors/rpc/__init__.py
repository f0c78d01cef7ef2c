"""Messages to handlers: the message router of ADR 011, sessions and calls."""
