"""`resolve`: who would be used now."""

import msgspec
from msgspec import UNSET, Struct, UnsetType

from fallbackd_client.wire.aliases import one_of
from fallbackd_client.wire.bounds import ChainName, Name, RoleName, SessionName, Tokens, Trigger
from fallbackd_client.wire.envelope import Method
from fallbackd_client.wire.methods.delegate import ChainEntry
from fallbackd_client.wire.shapes import CandidateVerdict


class Params(Struct, frozen=True, kw_only=True, omit_defaults=True):
    session: SessionName | None = None
    session_id: SessionName | None = None
    role: RoleName | None = None
    backend: Name | None = None
    platform: Name | None = None
    chain: ChainName | tuple[Name | ChainEntry, ...] | None = None
    model: Name | None = None
    prompt_tokens: Tokens | None = None
    differs_from: tuple[Name, ...] = ()
    allow_metered: bool = False
    lease: bool = False
    """The caller will make the call itself, and reports with the lease."""
    owner: Name | None = None
    """Who that is, for people; absent: its process id."""

    def normalised(self) -> "Params":
        """
        The same under today's names.

        Raises:
            msgspec.ValidationError: Two names of one field contradict each other.
        """
        return msgspec.structs.replace(
            self,
            backend=one_of(backend=self.backend, platform=self.platform),
            platform=None,
            session=one_of(session=self.session, session_id=self.session_id),
            session_id=None,
        )


class Lease(Struct, frozen=True, kw_only=True):
    id: str
    generation: int
    expires_at: float
    owner: str | None = None


class Result(Struct, frozen=True, kw_only=True):
    backend: str
    model: str | None = None
    credential: str | None = None
    tier: str | None = None
    trigger: Trigger | None = None
    """Null without a redirect."""
    position: int | None = None
    """Place of the chosen one among the candidates, 0 for the requested one."""
    candidates: tuple[CandidateVerdict, ...] = ()
    lease: Lease | UnsetType | None = UNSET
    """Only where asked for; null where none is needed."""
    turn: str | None = None
    """To be sent with a `report` of this call by a caller without a session."""
    warnings: tuple[str, ...] = ()


METHOD: Method[Params, Result] = Method(
    "resolve",
    params=Params,
    result=Result,
    read_only=False,  # with `lease` it takes one
    summary="Who would be used now, with a verdict for every candidate.",
)
