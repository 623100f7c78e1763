"""Shared health on a Valkey or Redis server. Imports `redis`, so it is loaded only on demand."""
