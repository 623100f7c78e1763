"""
An MCP server on standard input and output: agents hand work to the daemon as a tool call.

A thin layer over the blocking client: it keeps no state of its own beyond the calls under way.
Standard library only, since each session of an agent, and each of its subagents, starts one.
"""
