"""What was said in a session before, and how an attempt is given it."""

from typing import Literal

from msgspec import Struct

from fallbackd.core.ids import BackendId, DelegationId
from fallbackd.core.protocol import Usage

MAX_TURNS = 100
"""A session remembers so many; configuration may bound what is given to an agent further."""

CarriedWord = Literal["resumed", "native", "messages", "brief"]
"""
How an attempt is given the past of its session. `resumed`: its agent continues its own
conversation; `native`: as a conversation in its agent's own format; `messages`: as messages of an
HTTP request; `brief`: as text in front of the prompt.
"""


class AgentConversation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A conversation that an agent keeps itself, as it was when the agent last answered in it."""

    backend: BackendId
    id: str
    """As its program names it."""
    cwd: str = ""
    """Where it was held; empty: in the private directory of `Past.work`."""
    usage: Usage = Usage()
    """What was counted of it so far: some programs report the totals of a conversation."""


class Past(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was said in a session so far, which its next prompt continues."""

    turns: tuple[DelegationId, ...] = ()
    """The delegations that were answered, oldest first: their prompts and answers are on disk."""
    conversation: AgentConversation | None = None
    """The one that holds all of it; None: the agent that answered last keeps none."""
    work: DelegationId | None = None
    """Whose private directory is worked in, where the caller names none."""
