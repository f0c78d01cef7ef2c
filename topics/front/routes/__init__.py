"""Routes: one module per resource with its rows and operations; `table` assembles them."""
