"""What a session remembers, as shapes of the wire."""

from msgspec import Struct


class SessionTurn(Struct, frozen=True, kw_only=True):
    """A prompt that was answered in a session."""

    delegation: str
    """The delegation that it was."""
    backend: str | None = None
    """The backend that answered."""
    ended_at: float | None = None
    """When it was answered."""
    prompt: str | None = None
    """How the prompt begins; null: it is not on record any more."""
    answer: str | None = None
    """How the answer begins; null: it is not on record any more."""


class SessionConversation(Struct, frozen=True, kw_only=True):
    """A conversation that an agent keeps in its own files."""

    backend: str
    """Backend of the agent."""
    id: str
    """As the agent names it."""
