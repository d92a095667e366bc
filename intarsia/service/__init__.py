"""The HTTP service: one ASGI application over a bank, with its jobs and its sockets."""
