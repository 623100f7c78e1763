"""JSON-RPC 2.0, one message a line, over a Unix socket."""
