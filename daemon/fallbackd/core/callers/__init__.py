"""Callers that talk to a provider themselves."""
