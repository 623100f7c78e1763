"""Parts of params that several methods read alike."""

from fallbackd.api.errors import ApiError
from fallbackd.core.ids import BackendId
from fallbackd.core.policy import Entry, Policy
from fallbackd_client.wire.methods.delegations import ChainEntry

TIERS = frozenset({"primary", "model", "api", "in_session"})


def chain(given: str | tuple[str | ChainEntry, ...] | None) -> tuple[Entry, ...] | str | None:
    """The name of a configured chain, or the entries of one that the caller made."""
    if given is None or isinstance(given, str):
        return given
    return tuple(_entry(one, at) for at, one in enumerate(given))


def entries(
    given: str | tuple[str | ChainEntry, ...] | None, policy: Policy
) -> tuple[Entry, ...] | None:
    """The same with the entries of a named chain."""
    found = chain(given)
    if not isinstance(found, str):
        return found
    if found not in policy.chains:
        known = ", ".join(sorted(policy.chains)) or "none"
        raise ApiError(
            "invalid_params",
            f"`chain`: there is no chain {found!r}. Known chains: {known}.",
            data={"path": "chain"},
        )
    return policy.chains[found]


def _entry(one: str | ChainEntry, at: int) -> Entry:
    if isinstance(one, str):
        return Entry(backend=BackendId(one))
    if one.tier is not None and one.tier not in TIERS:
        raise ApiError(
            "invalid_params",
            f"`chain[{at}].tier`: {one.tier!r} is no tier. Use one of {', '.join(sorted(TIERS))},"
            " or leave it out.",
            data={"path": f"chain[{at}].tier"},
        )
    return Entry(
        backend=BackendId(one.backend),
        model=one.model,
        tier=one.tier,  # type: ignore[arg-type] # checked above
        effort=one.effort,
    )
