"""Kinds of events that show how a delegation is going, for `follow` of both clients."""

PROGRESS = (
    "attempt.started",
    "attempt.phase",
    "attempt.ended",
    "delegation.hopped",
    "session.notice",
)
"""What `follow` yields unless other kinds are named."""
LAST = ("delegation.ended", "question.opened")
"""After one of these nothing happens until a person or the caller acts."""
