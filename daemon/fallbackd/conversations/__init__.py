"""Conversations of agents as pure values: read, bounded, put into words, written anew."""
