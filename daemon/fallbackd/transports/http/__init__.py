"""Requests to HTTP APIs."""
