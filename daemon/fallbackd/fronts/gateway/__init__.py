"""Callers over HTTP who speak a provider's own API, answered by whichever backend is available."""
