"""Which candidates a request has, in order, before anything is known of their health."""

from msgspec import structs

from fallbackd.core.computed import once
from fallbackd.core.ids import BackendId
from fallbackd.core.policy import Backend, Entry, Policy, Role, Shell
from fallbackd.core.records import Session
from fallbackd.core.routing.tiers import labelled


def candidates_for(
    policy: Policy,
    *,
    backend: BackendId | None,
    role: str | None,
    chain: tuple[Entry, ...] | None,
    model: str | None = None,
    session: Session | None = None,
) -> tuple[Entry, ...]:
    """
    The requested backend, then the first chain of explicit, role, requested backend, `*` that
    exists and is not empty. Chains are not joined. The built-in `*` holds all agents: what a
    caller has named does not fall back to it. In a role that is switched off only the first of
    them remains.
    """
    known = None if role is None else find_role(policy, role)
    if not chain and known is None and backend is None and session is not None:
        chain = session.chain
    found = chain or (() if known is None else known.chain)
    fallback_model = None if known is None else known.fallback_model
    requested = backend
    if requested is None and not found and session is not None and session.chain is None:
        requested = session.original
    is_open = backend is None and known is None
    candidates = _chain_led_by(policy, requested, model, found, is_open, fallback_model)
    return candidates if known is None or known.enabled else candidates[:1]


def own_chain(
    policy: Policy, *, backend: BackendId | None, role: str | None, chain: tuple[Entry, ...] | None
) -> tuple[Entry, ...] | None:
    """The chain that a session keeps of its first request; see `Session.chain`."""
    if backend is not None:
        return None
    if role is None:
        return chain or ()
    known = find_role(policy, role)
    return chain or (() if known is None else known.chain) or None


@once
def _chain_led_by(
    policy: Policy,
    requested: BackendId | None,
    model: str | None,
    chain: tuple[Entry, ...],
    is_open: bool,
    fallback_model: str | None,
) -> tuple[Entry, ...]:
    """
    Args:
        chain: Of the request or of its role; empty: the configured one.
    """
    chain = chain or _chain_of(policy, requested, is_open=is_open)
    return labelled(_led_by(requested, model, chain), policy, fallback_model=fallback_model)


def _led_by(
    requested: BackendId | None, model: str | None, chain: tuple[Entry, ...]
) -> tuple[Entry, ...]:
    """The requested backend before the rest of the chain; without one, the model for its head."""
    if requested is not None:
        rest = (e for e in chain if not (e.backend == requested and e.model in (model, None)))
        return (Entry(backend=requested, model=model), *rest)
    if model is None or not chain:
        return chain
    return (structs.replace(chain[0], model=model), *chain[1:])


def _chain_of(policy: Policy, requested: BackendId | None, *, is_open: bool) -> tuple[Entry, ...]:
    """The configured chain of a backend, else that of all."""
    own = () if requested is None else policy.chains.get(requested, ())
    if own or (policy.any_is_built_in and not is_open):
        return own
    return policy.chains.get("*", ())


@once
def find_role(policy: Policy, name: str) -> Role | None:
    """Exact, then a unique normalised match: lower case, letters and digits, without `agent`."""
    if name in policy.roles:
        return policy.roles[name]
    wanted = _normalised(name)
    found = [role for key, role in policy.roles.items() if _normalised(key) == wanted]
    return found[0] if len(found) == 1 else None


def shell_of(policy: Policy, backend: Backend, role: str | None) -> Shell:
    """`confined` only where the kernel confines the backend wholly."""
    of_role = None if role is None else find_role(policy, role)
    wanted = of_role.shell if of_role is not None and of_role.shell else backend.shell
    is_held = policy.kernel_confines == "yes" and policy.confines(backend)
    return (wanted or policy.defaults.shell) if is_held else "own"


def _normalised(name: str) -> str:
    plain = "".join(ch for ch in name.lower() if ch.isalnum())
    return plain.removesuffix("agent") or plain
