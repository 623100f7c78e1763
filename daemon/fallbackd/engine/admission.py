"""Make a `DelegateRequested` of a caller's words: paths, ids, the digest, its authority."""

import hashlib
import os
import stat
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from msgspec import structs

from fallbackd.backends.spec import Options
from fallbackd.core.authority import (
    PERSON,
    Authority,
    Request,
    authority_in,
    meet,
    narrowed,
    nothing,
)
from fallbackd.core.decision import Rejection
from fallbackd.core.events import DelegateRequested
from fallbackd.core.ids import AttemptId, DelegationId, SessionId
from fallbackd.core.policy import Entry, Policy
from fallbackd.core.records import Delegation, Snapshot, Standby
from fallbackd.core.routing.candidates import (
    UNKNOWN,
    family_of,
    family_of_model,
    find_role,
    known_families,
)
from fallbackd.core.scopes import find_backend
from fallbackd.core.work.standby import terms
from fallbackd.engine.environment import Settings, World
from fallbackd.engine.live import Held
from fallbackd.engine.requests import Invalid, NewWork, NotPermitted, Refused, Unknown, mode_of
from fallbackd.engine.runs import Runs
from fallbackd.engine.takeover import place_of
from fallbackd.lib.alike import alike
from fallbackd.lib.directories import identities, identity, is_below, places
from fallbackd.ports.store import Store

CHARS_PER_TOKEN = 4.0
"""A rough measure of English text and code; only compared with context sizes."""
MAX_SESSION_CHARS = 200
MAX_METADATA_BYTES = 64 * 1024
"""Size as JSON: it is kept in the database and returned with each look at the delegation."""
MAX_ROLE_CHARS = 128
MAX_VARIABLE_BYTES = 128 * 1024
"""Size of `NAME=value` and its final zero: the kernel starts no program with a longer one."""


class Directory(NamedTuple):
    """A working directory as it was judged: nothing looks for it by its name again."""

    path: str = ""
    """Real; empty: a private one."""
    ids: tuple[str, ...] = ()
    """Identities, as `lib.directories.identities` gives them."""


def admit(
    work: NewWork,
    directory: Directory,
    policy: Policy,
    world: World,
    seen: Snapshot,
    *,
    differs_from: tuple[str, ...] | None = None,
) -> DelegateRequested:
    """
    Check what only a look at the machine can tell, and give everything its name.

    Args:
        differs_from: What the caller named, as families.

    Raises:
        Invalid: A parameter that cannot be.
        NotPermitted: A directory or a variable that is not allowed.
    """
    if not work.prompt.strip():
        raise Invalid("the prompt is empty; say what to do")
    if "\0" in work.prompt:
        raise Invalid("the prompt holds a NUL character, which no agent takes; remove it")
    if len(msgspec.json.encode(work.metadata)) > MAX_METADATA_BYTES:
        raise Invalid(f"metadata: more than {MAX_METADATA_BYTES // 1024} KiB; give an id instead")
    _require_printable("session", work.session, MAX_SESSION_CHARS)
    _require_printable("role", work.role, MAX_ROLE_CHARS)
    _refuse_misspelt_role(work.role, policy)
    delegation = DelegationId(f"d{world.mint()}")
    session = SessionId(work.session or f"s{world.mint()}")
    chain, chain_name = _chain(work, policy)
    _require_possible_env(work, policy)
    mode = mode_of(work)
    parent = None if work.parent is None else _parent(work.parent, seen)
    return alike(
        DelegateRequested,
        work,
        delegation=delegation,
        session=session,
        chain=chain,
        chain_name=chain_name,
        cwd=directory.path,
        cwd_ids=directory.ids,
        mode=mode,
        digest=digest(work),
        parent=parent,
        parent_attempt=_parent_attempt(work, parent, seen),
        has_tmux=policy.defaults.tmux and world.find_program("tmux") is not None,
        prompt_tokens=int(len(work.prompt) / CHARS_PER_TOKEN) + 1,
        differs_from=differs_from,
        log_dir=str(world.runs_root / delegation),
        boot=world.boot_id,
        env_names=tuple(sorted(work.env)),
        luck=world.luck(),
    )


def digest(work: NewWork) -> str:
    """
    A fingerprint of the parameters, except how long the caller waits for the answer, and between
    which times: "in 3 hours" is another time when it is said again. Of who asks, only inside which
    delegation: the request ids of others are others. Defaults are no part of it: a field that is
    new later changes no request that is known.
    """
    parent = None if work.parent is None else work.parent.partition(".")[0]
    asked = msgspec.structs.replace(
        work,
        wait="settled",
        queue=True,
        request_id=None,
        parent=parent,
        inside=work.inside if parent is None else (),
        client=None,
        orphan_s=None,
        wait_until_at=None,
        not_before_at=None,
    )
    return hashlib.sha256(msgspec.json.encode(asked, order="deterministic")).hexdigest()


def standby(work: NewWork, *, now: float) -> Standby | None:
    """
    Return the terms on which work waits until a backend is available; None: it does not.

    Raises:
        Invalid: They contradict each other or the clock.
    """
    try:
        return terms(
            when_available=work.when_available,
            wait_for_s=work.wait_for_s,
            wait_until_at=work.wait_until_at,
            not_before_at=work.not_before_at,
            not_before_s=work.not_before_s,
            priority=work.priority,
            now=now,
        )
    except ValueError as error:
        raise Invalid(str(error)) from None


def _require_printable(name: str, value: str | None, maximum: int) -> None:
    if value is None:
        return
    if not 1 <= len(value) <= maximum or not value.isprintable():
        raise Invalid(f"{name}: give 1 to {maximum} printable characters")


def _chain(work: NewWork, policy: Policy) -> tuple[tuple[Entry, ...] | None, str | None]:
    match work.chain:
        case None:
            return None, None
        case str(name):
            if name not in policy.chains:
                known = ", ".join(sorted(policy.chains)) or "none"
                raise Invalid(f"no chain {name!r} in [chains]; known are: {known}")
            return policy.chains[name], name
        case entries:
            if not entries:
                raise Invalid("the chain is empty; name at least one backend, or leave it out")
            for entry in entries:
                if find_backend(policy, entry.backend) is None:
                    known = ", ".join(policy.backends)
                    raise Refused(
                        Rejection(
                            kind="unknown_backend",
                            message=f"chain: no backend {entry.backend!r}; known are {known}",
                            data={"backend": entry.backend},
                        )
                    )
            return entries, None


def _parent(name: str, seen: Snapshot) -> DelegationId:
    """
    The delegation inside which this call was made, by its name or that of its attempt.

    Raises:
        Refused: It has ended.
    """
    for one in (name, name.rpartition(".")[0]):
        if DelegationId(one) in seen.active:
            return DelegationId(one)
    raise Refused(
        Rejection(
            kind="busy",
            message=f"the attempt {name} from which this comes has ended; nothing new is started"
            " for it",
        )
    )


def _parent_attempt(work: NewWork, parent: DelegationId | None, seen: Snapshot) -> AttemptId | None:
    """The attempt from inside which this comes: the one it names, else the one that runs now."""
    if parent is None or work.parent is None:
        return None
    if work.parent != parent:
        return AttemptId(work.parent)
    running = seen.active[parent].running
    return None if running is None else running.attempt


def directory_of(cwd: str | None, policy: Policy, world: World) -> Directory:
    """
    Raises:
        Invalid, NotPermitted: It cannot be used, or is not allowed.
    """
    if cwd is None or cwd == "":
        return Directory()
    found = _usable(cwd)
    real = found.path
    defaults = policy.defaults
    roots = [os.path.realpath(os.path.expanduser(root)) for root in defaults.allowed_roots]
    if roots and not any(is_below(real, root) for root in roots):
        raise NotPermitted(
            f"cwd: {real} is outside allowed_roots ({', '.join(roots)}); "
            "work there, or add it to allowed_roots in [defaults]"
        )
    if not defaults.allow_broad_cwd and real in ("/", os.path.realpath(world.home)):
        what = "the root directory" if real == "/" else "your home directory"
        raise NotPermitted(
            f"{real} is {what}, too broad for an agent: cd into a project, or use --cwd DIR (cwd); "
            "allow_broad_cwd = true in [defaults] allows it"
        )
    return found


def _usable(cwd: str) -> Directory:
    """
    A directory that can be read and entered. Its path and its identity are of one that is open.

    Raises:
        Invalid: It is none.
    """
    if "\0" in cwd:
        raise Invalid("cwd: a path has no NUL in it")
    if not os.path.isabs(cwd):
        raise Invalid(f"cwd: {cwd!r} is relative; give the absolute path")
    try:
        place = os.open(cwd, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        why = error.strerror or str(error)
        raise Invalid(f"cwd: {cwd} cannot be used ({why}); give a directory that exists") from None
    try:
        is_directory = stat.S_ISDIR(os.fstat(place).st_mode)
        real = os.readlink(f"/proc/self/fd/{place}")
        ids = identities(real)
        is_same = ids[:1] == (identity(place),)
    finally:
        os.close(place)
    if not is_directory:
        raise Invalid(f"cwd: {cwd} is not a directory")
    if not is_same:
        raise Invalid(f"cwd: {cwd} was replaced while it was looked at; ask again")
    if not os.access(real, os.R_OK | os.X_OK):
        raise Invalid(
            f"cwd: {cwd} cannot be used (Permission denied); "
            "allow the user of the daemon to read and enter it, or give another directory"
        )
    return Directory(real, ids)


def _refuse_misspelt_role(role: str | None, policy: Policy) -> None:
    """An unknown role is served with a warning; one that nearly is a configured one was meant."""
    if role is None or find_role(policy, role) is not None:
        return
    from difflib import get_close_matches  # rarely needed, slow to load

    if near := get_close_matches(role, list(policy.roles), n=1, cutoff=0.8):
        raise Invalid(f"no role {role!r} is configured: did you mean {near[0]!r}?")


def _require_possible_env(work: NewWork, policy: Policy) -> None:
    if not work.env:
        return
    allowed = {name for backend in policy.backends.values() for name in backend.allow_env}
    wrong = sorted(set(work.env) - allowed)
    if wrong:
        raise NotPermitted(
            f"env: {', '.join(wrong)} may not be set by a caller; "
            "add the names to allow_env of the backend"
        )
    for name, value in work.env.items():
        if "\0" in value:
            raise Invalid(f"env: the value of {name} has a NUL in it; no program can be given one")
        if len(f"{name}={value}".encode()) >= MAX_VARIABLE_BYTES:
            raise Invalid(
                f"env: the value of {name} is longer than a program can be given "
                f"({MAX_VARIABLE_BYTES} bytes with its name); put it into a file"
            )


MAX_NAMES = 100


async def families(
    store: Store, policy: Policy, names: Sequence[str], authority: Authority = PERSON
) -> tuple[str, ...] | None:
    """
    The families that a caller means; None where it names none.

    Raises:
        Invalid: A name is neither a family nor a delegation that this caller has begun, or there
            are too many.
    """
    if not names:
        return None
    if len(names) > MAX_NAMES:
        raise Invalid(f"differs_from: {len(names)} names are given; give at most {MAX_NAMES}")
    known = known_families(policy)
    found: dict[str, None] = {}
    for name in names:
        if name in known:
            found[name] = None
            continue
        delegation = await store.delegation(DelegationId(name))
        if delegation is None or not authority.has_begun(delegation):
            raise Invalid(
                f"differs_from: {name!r} is neither a delegation nor a family of models; "
                f"known families are {', '.join(sorted(known))}"
            )
        found[author_of(delegation, policy)] = None
    return tuple(found)


def author_of(delegation: Delegation, policy: Policy) -> str:
    """The family of the backend that answered last there; `?` where it is unknown."""
    hint = delegation.handed_back
    if hint is not None:
        return (hint.model and family_of_model(hint.model)) or UNKNOWN
    served = [one for one in delegation.attempts if one.state == "succeeded"]
    if not served:
        return UNKNOWN
    backend = find_backend(policy, served[-1].backend)
    return (backend and family_of(backend, served[-1].model)) or UNKNOWN


def authority_of(
    attempts: tuple[str, ...] | None, store: Store, runs: Runs, held: dict[DelegationId, Held]
) -> Authority:
    """
    Args:
        attempts: Those for which the calling process works; None: it works for none, and asks for a
            person.
    """
    if attempts is None:
        return PERSON
    if not attempts:
        return nothing(
            "no delegation runs on the helper server that the calling process is part of"
        )
    return meet([_of_one(AttemptId(one), store, runs, held) for one in attempts])


def _of_one(
    attempt: AttemptId, store: Store, runs: Runs, held: dict[DelegationId, Held]
) -> Authority:
    name = DelegationId(attempt.rpartition(".")[0])
    one = store.peek().active.get(name)
    if one is None:
        return nothing(f"the delegation of attempt {attempt} has ended")
    given = held.get(name)
    return authority_in(
        one,
        attempt,
        # The recorded one is real already; its name may lead elsewhere by now.
        directory=one.cwd or os.path.realpath(place_of(runs, one)),
        env={} if given is None else given.env,
    )


def require_within(
    work: NewWork, cwd: str, authority: Authority, settings: Settings, world: World
) -> None:
    """
    Args:
        cwd: The real path of its directory.

    Raises:
        NotPermitted: It asks for more than it may.
    """
    asked = Request(
        permissions=work.permissions, cwd=cwd, env=work.env, allow_metered=work.allow_metered
    )
    _require(asked, authority, settings, world)


def require_readable(root: str, authority: Authority, settings: Settings, world: World) -> None:
    """
    A directory that the daemon reads for its caller is one that its work could be given.

    Raises:
        NotPermitted: It is not.
        Invalid: It cannot be used.
    """
    if not authority.is_person:
        cwd = directory_of(root, settings.policy, world).path
        _require(Request(permissions="read", cwd=cwd), authority, settings, world)


def _require(asked: Request, authority: Authority, settings: Settings, world: World) -> None:
    if authority.is_person:
        return
    found = narrowed(structs.replace(authority, withheld=_withheld(settings, world)), asked)
    if isinstance(found, str):
        raise NotPermitted(found)


def _withheld(settings: Settings, world: World) -> tuple[str, ...]:
    """Places where the daemon and the agents keep their state, settings and logins."""
    found = list(world.private)
    used = [(one.kind, settings.options_of(id)) for id, one in settings.policy.backends.items()]
    for name, options in (*((kind, Options()) for kind in world.kinds), *used):
        given = [ref.name for ref in options.credentials if ref.source == "file"]
        if name in world.kinds:
            footprint = world.kinds[name].footprint(options)
            given += (*footprint.keys, *footprint.writes)
        found += places(given, {**world.environ, **options.env}, home=world.home)
    return tuple(dict.fromkeys(os.path.realpath(one) for one in found))


_NOT_KEPT = ("prompt", "env", "request_id", "parent", "inside", "client", "orphan_s")
"""The prompt has a file of its own; variables may be secrets; the rest belongs to one call."""


def kept(work: NewWork) -> bytes:
    """Encode the parameters without the values of variables, which are not written to disk."""
    fields = {**structs.asdict(work), "mode": mode_of(work)}
    return msgspec.json.encode({name: fields[name] for name in fields if name not in _NOT_KEPT})


def request_of(runs: Runs, one: Delegation) -> NewWork:
    """
    Raises:
        Unknown: Its prompt or its parameters are not on record any more.
        Invalid: It has not ended, or was given variables.
    """
    name = one.delegation
    if not one.is_ended:
        raise Invalid(
            f"{name} has not ended; wait for it, or stop it: fallbackd-client cancel {name}"
        )
    prompt = runs.read_prompt(name)
    if prompt is None:
        raise Unknown(f"the prompt of {name} is not on record any more; delegate it again")
    return structs.replace(_asked(runs, one, prompt), inside=one.above)


def reply_to(runs: Runs, one: Delegation, prompt: str) -> NewWork:
    """
    Ask the session to continue where it is by now: no backend is asked for by name.

    Raises:
        Unknown: Its parameters are not on record any more.
        Invalid: It was given variables.
    """
    asked = _asked(runs, one, prompt)
    stays = one.served_by in (None, one.requested)
    return structs.replace(
        asked,
        session=one.session,
        backend=None,
        model=asked.model if stays else None,
        fresh=False,
        metadata={},
    )


def _asked(runs: Runs, one: Delegation, prompt: str) -> NewWork:
    """Recorded parameters, with this prompt."""
    name = one.delegation
    if one.env_names:
        raise Invalid(
            f"{name} was given {', '.join(one.env_names)}, whose values are not kept; delegate the"
            " prompt again with --env"
        )
    request = runs.read_request(name)
    if request is None:
        raise Unknown(f"the parameters of {name} are not on record any more; delegate it again")
    try:
        fields = msgspec.json.decode(request, type=dict[str, msgspec.Raw])
        whole = {**fields, "prompt": msgspec.Raw(msgspec.json.encode(prompt))}
        asked = msgspec.json.decode(msgspec.json.encode(whole), type=NewWork)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise Unknown(f"the parameters of {name} cannot be read: {error}") from error
    # Times were meant for that one.
    return structs.replace(
        asked,
        when_available=one.standby is not None,
        wait_until_at=None,
        not_before_at=None,
        not_before_s=None,
    )
