"""A session and what it remembers, as shapes of the wire."""

from msgspec import Struct

from fallbackd_client.wire.shapes import Hop


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


class SessionView(Struct, frozen=True, kw_only=True):
    session: str
    """Id of the session."""
    role: str | None = None
    """Role of the session."""
    original: str | None = None
    """The backend that it started on."""
    current: str | None = None
    """The backend that it is on now."""
    original_model: str | None = None
    """The model that it started on."""
    current_model: str | None = None
    """The model that it is on now."""
    depth: int = 0
    """How many hops it is away from its original backend."""
    running: str | None = None
    """The delegation that runs in it now."""
    last_fallback_at: float | None = None
    """When it last failed over."""
    last_active_at: float | None = None
    """When it was last used."""
    hops: tuple[Hop, ...] = ()
    """Its moves, in order."""
    notices: tuple[str, ...] = ()
    """The same as `notices_sent`."""
    notices_sent: tuple[str, ...] = ()
    """Moves that were announced, as `original→current`."""
    ignored_reports: int = 0
    """How many reports came too late to count."""
    server: str | None = None
    """Address of the opencode server on which it lives."""
    directory: str | None = None
    """Directory of an opencode session."""
    rescue: str | None = None
    """A change of model that is under way, in words."""
    conversation: SessionConversation | None = None
    """The agent's own conversation that the next prompt continues."""
    turns: tuple[SessionTurn, ...] = ()
    """What the next prompt continues, oldest first; only in `session.get`."""
