"""The contract of the socket: framing, envelopes, error codes, and one module for each method."""
