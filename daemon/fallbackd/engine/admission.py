"""From the words of a caller to a `DelegateRequested`: paths, ids, the digest."""

import hashlib
import os
import stat
from typing import NamedTuple

import msgspec

from fallbackd.core.changes import Rejection
from fallbackd.core.events import DelegateRequested
from fallbackd.core.health.scopes import find_backend
from fallbackd.core.ids import AttemptId, DelegationId, SessionId
from fallbackd.core.policy import Entry, Policy
from fallbackd.core.records import Snapshot
from fallbackd.core.routing.candidates import find_role
from fallbackd.engine.environment import World
from fallbackd.engine.requests import Invalid, NewWork, NotPermitted, Refused, mode_of
from fallbackd.lib.alike import alike
from fallbackd.lib.directories import identities, identity, is_below

CHARS_PER_TOKEN = 4.0
"""A rough measure of English text and code; only compared with context sizes."""
MAX_SESSION_CHARS = 200
MAX_METADATA_BYTES = 64 * 1024
"""As JSON. It is kept in the database and comes back with each look at the delegation."""
MAX_ROLE_CHARS = 128
MAX_VARIABLE_BYTES = 128 * 1024
"""Of `NAME=value` with the zero at its end: the kernel starts no program with a longer one."""


class Directory(NamedTuple):
    """A working directory as it was judged: nothing looks for it by its name again."""

    path: str = ""
    """Real; empty: a private one."""
    ids: tuple[str, ...] = ()
    """As `lib.directories.identities` has them."""


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
        raise Invalid("the prompt is empty; say what is to be done")
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
    A fingerprint of the parameters, except how long the caller waits for the answer. Of who asks,
    only inside which delegation: the request ids of others are others. Defaults are no part of it:
    a field that is new later changes no request that is known.
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
    )
    return hashlib.sha256(msgspec.json.encode(asked, order="deterministic")).hexdigest()


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
