"""A daemon that dies under callers that do not give up, and what must hold after that."""
