"""Completions for shells, generated from the parsers of the command line."""
