"""A daemon that dies again and again under callers that do not give up, and what must hold after."""
