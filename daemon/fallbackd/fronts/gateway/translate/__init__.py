"""A conversation in chat completions as one in Anthropic's messages, and the other way. Pure."""
