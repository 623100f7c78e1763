"""
What callers can ask of the daemon, by noun, whatever protocol it comes by.

A method is served by a function of its noun here and typed by the noun of the same name in
`fallbackd_client.wire.methods`. Errors carry a kind; a front says what that is in its protocol.
"""
