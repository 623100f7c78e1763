"""
The small program that starts and watches one agent CLI, outside the daemon.

Standard library only: it is loaded by an interpreter without `site`, and each attempt is a fork
of it. The daemon shares its vocabulary (`frames`, `recorder`, `tree`) and nothing else.
"""
