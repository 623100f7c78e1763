"""
The methods that callers can ask of the daemon, by noun, whatever protocol they come by.

A method is typed by its noun in `fallbackd_client.wire.methods`; one module here serves all methods
of a noun. Errors carry a kind; a front says what that is in its protocol.
"""
