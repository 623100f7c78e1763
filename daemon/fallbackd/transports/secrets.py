"""
Resolves a reference to a credential to its secret, just before the call that carries it.

Environment variables, files, commands and systemd credentials. Nothing is written. The answers of
commands are kept in memory until they expire. A problem says where to look, and never what was
found there.
"""

import base64
import datetime
import hashlib
import json
import os
import secrets
import signal
import stat
import subprocess
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import anyio
import anyio.to_thread
import msgspec
from msgspec import Struct

from fallbackd.core.protocol import CredentialRef, NotStarted
from fallbackd.ports.transport import KEY_NAME_BYTES, SecretProblem, SecretSeen
from fallbackd.transports.process.environment import child_environment

# --- what a source holds -------------------------------------------------------------------------
# What a source of a credential holds: a bare secret, or a document of a login with one inside.

EXPIRY_NAMES = ("expires_at", "expiresAt", "expiry_date", "expiry", "expires", "Expiration")
"""Names in the login files of agent CLIs and in what the helpers of clouds print."""
RENEWAL_NAMES = ("refresh_token", "refreshToken")
ACCOUNT_NAMES = ("account_id", "accountId", "account_uuid", "accountUuid")
"""Names of the account that logged in: it stays when the tokens are renewed."""
_MILLISECONDS = 1e11
"""A larger number of seconds would be in the year 5138."""


class Material(Struct, frozen=True, kw_only=True):
    secret: str
    expires_at: float | None = None
    """Unix seconds, by the source itself."""
    renewable: bool = False
    """Its owner renews it by itself: that it is over says nothing."""
    account: str | None = None
    """The account of the login, where the source says so: the same on all machines."""

    def __repr__(self) -> str:
        return f"Material(expires_at={self.expires_at})"


def material_of(text: str, *, field: str | None, where: str) -> Material:
    """
    Read a source's text: the field of a JSON document, else its first line.

    Raises:
        SecretProblem: There is no secret in it, or none that a header could carry.
    """
    text = text.strip()
    if not text:
        raise SecretProblem(f"{where} is empty")
    if field is not None or text[0] == "{":
        return _from_document(text, field, where)
    secret = text.splitlines()[0].strip()
    claims = _claims(secret)
    return Material(
        secret=_carried(secret, where),
        expires_at=_instant(claims.get("exp")),
        account=_subject(claims),
    )


def _from_document(text: str, field: str | None, where: str) -> Material:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise SecretProblem(f"{where} begins like JSON and is none") from None
    if not isinstance(document, dict):
        raise SecretProblem(f"{where} is JSON without names, so it has no field {field!r}")
    if field is None:
        raise SecretProblem(
            f'{where} is JSON: say where in it the secret is, as field = "name" or "outer.name"'
        )
    *outer, last = field.split(".")
    nearest: dict[str, Any] = document  # any JSON: files of other programs
    for name in outer:
        below = nearest.get(name)
        nearest = below if isinstance(below, dict) else {}
    value = nearest.get(last)
    if not isinstance(value, str) or not value.strip():
        raise SecretProblem(f"{where} has no text at its field {field!r}")
    return _described(_carried(value.strip(), where), nearest)


def _described(secret: str, nearest: dict[str, Any]) -> Material:
    """
    Args:
        nearest: The object of the secret, which may tell more about it.
    """
    claims = _claims(secret)
    stated = [at for name in EXPIRY_NAMES if (at := _instant(nearest.get(name))) is not None]
    named = [one for name in ACCOUNT_NAMES if isinstance(one := nearest.get(name), str) and one]
    return Material(
        secret=secret,
        expires_at=stated[0] if stated else _instant(claims.get("exp")),
        account=named[0] if named else _subject(claims),
        renewable=any(isinstance(nearest.get(name), str) for name in RENEWAL_NAMES),
    )


def _carried(secret: str, where: str) -> str:
    if not secret.isascii() or not secret.isprintable():
        raise SecretProblem(f"{where} holds characters that no key has")
    return secret


def _instant(value: object) -> float | None:
    """Unix seconds of a number, of its text, or of an ISO 8601 time (without a zone: UTC)."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        value = _number(value) or _iso(value)
    if not isinstance(value, int | float) or not 0 < value < 1e15:
        return None
    return value / 1000 if value > _MILLISECONDS else float(value)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _iso(text: str) -> float | None:
    try:
        read = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    return (read if read.tzinfo else read.replace(tzinfo=datetime.UTC)).timestamp()


def _claims(secret: str) -> dict[str, Any]:  # any JSON
    """Read the claims of a JSON Web Token; nothing where it is none. Source: RFC 7519, 4.1."""
    parts = secret.split(".")
    if len(parts) != 3 or not secret.startswith("ey"):
        return {}
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError):
        return {}
    return claims if isinstance(claims, dict) else {}


def _subject(claims: dict[str, Any]) -> str | None:
    """Unique for each issuer of tokens."""
    subject, issuer = claims.get("sub"), claims.get("iss")
    return f"{issuer} {subject}" if isinstance(subject, str) and isinstance(issuer, str) else None


# --- sources -------------------------------------------------------------------------------------

MAX_SECRET_BYTES = 64 * 1024
KEY_BYTES = 32
COMMAND_LIMIT_S = 15.0
"""A program that asks a keyring answers at once; one that asks a person must not hang a call."""
COMMAND_FRESH_S = 300.0
"""Time for which the answer of a command is used that does not say when it is over."""
EXPIRY_LEEWAY_S = 30.0
"""A command is asked again this long before its answer is over: the call has to arrive."""


class _Answer(Struct, frozen=True, kw_only=True):
    material: Material
    until_at: float

    def __repr__(self) -> str:
        return f"_Answer(until_at={self.until_at})"


class SecretSources:
    """
    See `ports.transport.Secrets`.

    Args:
        environ: Of the daemon: where variables and `CREDENTIALS_DIRECTORY` are looked up.
        key: For digests. The same one makes them comparable over restarts; None: one for this
            process.
        inheritable: What a command is given; None: `environ`.
        learn: Is given each place and the secret that was found there, to hide it elsewhere.
    """

    def __init__(
        self,
        *,
        environ: Mapping[str, str],
        now: Callable[[], float],
        key: bytes | None = None,
        inheritable: Mapping[str, str] | None = None,
        learn: Callable[[Hashable, str], None] = lambda _place, _secret: None,
        command_limit_s: float = COMMAND_LIMIT_S,
    ) -> None:
        self._environ = environ
        self._now = now
        self._inheritable = environ if inheritable is None else inheritable
        self._learn = learn
        self._command_limit_s = command_limit_s
        self._key = secrets.token_bytes(KEY_BYTES) if key is None else key
        self._answers: dict[tuple[str, ...], _Answer] = {}
        self._asking: dict[tuple[str, ...], anyio.Lock] = {}

    async def read(self, ref: CredentialRef) -> str:
        return (await self._material(ref, fresh=False)).secret

    async def identity(self, ref: CredentialRef) -> str:
        found = await self._material(ref, fresh=False)
        return found.secret if found.account is None else f"account {found.account}"

    async def look(self, ref: CredentialRef, *, fresh: bool = False) -> SecretSeen:
        changed_at = None
        if ref.source in ("file", "systemd"):
            changed_at = await anyio.to_thread.run_sync(self._changed_at, ref)
        try:
            found = await self._material(ref, fresh=fresh)
        except SecretProblem as problem:
            return SecretSeen(problem=str(problem), is_old=problem.is_old, changed_at=changed_at)
        name = self._hashed(b"", size=KEY_NAME_BYTES, about=b"name")
        digest = self._hashed(found.secret.encode(), size=16, about=b"secret")
        return SecretSeen(digest=name + digest, changed_at=changed_at)

    def _hashed(self, data: bytes, *, size: int, about: bytes) -> bytes:
        return hashlib.blake2b(data, key=self._key, digest_size=size, person=about).digest()

    async def _material(self, ref: CredentialRef, *, fresh: bool) -> Material:
        match ref.source:
            case "env":
                found = self._parsed(ref, self._variable(ref))
            case "file" | "systemd":
                data = await anyio.to_thread.run_sync(self._file, ref)
                found = self._parsed(ref, data)
            case "command":
                found = await self._asked(ref, fresh=fresh)
        self._learn(msgspec.structs.replace(ref, label="", into=None), found.secret)
        if found.expires_at is not None and found.expires_at <= self._now() and not found.renewable:
            raise SecretProblem(f"{_where(ref)} has expired; log in again", is_old=True)
        return found

    def _parsed(self, ref: CredentialRef, text: str) -> Material:
        return material_of(text, field=ref.field, where=_where(ref))

    def _variable(self, ref: CredentialRef) -> str:
        value = self._environ.get(ref.name)
        if value is None:
            raise SecretProblem(
                f"{_where(ref)} is not set for the daemon: set it and start the daemon again"
            )
        return value

    # --- files -----------------------------------------------------------------------------

    def _path(self, ref: CredentialRef) -> str:
        if ref.source == "file":
            return self._home() + ref.name[1:] if ref.name.startswith("~/") else ref.name
        directory = self._environ.get("CREDENTIALS_DIRECTORY")
        if not directory:
            raise SecretProblem(
                f"{_where(ref)}: systemd gave no credentials to the daemon; write "
                f"LoadCredential={ref.name}:… into its unit"
            )
        return os.path.join(directory, ref.name)

    def _home(self) -> str:
        return self._environ.get("HOME") or os.path.expanduser("~")

    def _changed_at(self, ref: CredentialRef) -> float | None:
        try:
            return os.stat(self._path(ref)).st_mtime
        except (OSError, SecretProblem):
            return None

    def _file(self, ref: CredentialRef) -> str:
        path = self._path(ref)
        try:
            # A pipe or a device must not make us wait.
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError as error:
            raise SecretProblem(f"{_where(ref)}: {error.strerror or error}") from None
        try:
            self._require_private(ref, os.fstat(handle))
            with os.fdopen(handle, "rb", closefd=False) as file:
                data = file.read(MAX_SECRET_BYTES + 1)
        except OSError as error:
            raise SecretProblem(f"{_where(ref)}: {error.strerror or error}") from None
        finally:
            os.close(handle)
        return _text(data, _where(ref))

    def _require_private(self, ref: CredentialRef, seen: os.stat_result) -> None:
        if not stat.S_ISREG(seen.st_mode):
            raise SecretProblem(f"{_where(ref)} is not a regular file")
        if ref.source == "systemd":
            return  # systemd has made it, in a directory of ours alone
        open_to = stat.S_IWGRP | stat.S_IWOTH
        if seen.st_uid == os.geteuid():
            open_to |= stat.S_IRGRP | stat.S_IROTH
        elif seen.st_uid != 0:
            raise SecretProblem(f"{_where(ref)} belongs to another user")
        if seen.st_mode & open_to:
            raise SecretProblem(f"{_where(ref)} is open to other users: chmod 600 {ref.name}")

    # --- commands --------------------------------------------------------------------------

    async def _asked(self, ref: CredentialRef, *, fresh: bool) -> Material:
        key = (*ref.argv, ref.field or "")
        async with self._asking.setdefault(key, anyio.Lock()):
            known = self._answers.get(key)
            if known is not None and not fresh and self._now() < known.until_at:
                return known.material
            self._answers.pop(key, None)
            found = self._parsed(ref, await self._run(ref))
            until_at = self._now() + COMMAND_FRESH_S
            if found.expires_at is not None:
                until_at = found.expires_at - EXPIRY_LEEWAY_S
            self._answers[key] = _Answer(material=found, until_at=until_at)
            return found

    async def _run(self, ref: CredentialRef) -> str:
        where = _where(ref)
        env = child_environment(self._inheritable, added={}, unset=(), marks={})
        try:
            code, data = await _output(ref.argv, env, limit_s=self._command_limit_s)
        except TimeoutError:
            raise SecretProblem(f"{where} did not end within {self._command_limit_s:g} s") from None
        except OSError as error:
            raise SecretProblem(f"{where}: {error.strerror or error}") from None
        if code != 0:
            raise SecretProblem(f"{where} ended with status {code}: run it by hand to see why")
        return _text(data, where)


async def _output(
    argv: Sequence[str], env: Mapping[str, str], *, limit_s: float
) -> tuple[int, bytes]:
    """
    Exit status and output of a program. What it says beside it is dropped: it may be the secret.

    Raises:
        TimeoutError, OSError: It took too long, or there is no such program.
    """
    process = await anyio.open_process(
        list(argv),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=env,
        cwd="/",
        start_new_session=True,
    )
    data = bytearray()
    try:
        with anyio.fail_after(limit_s):
            assert process.stdout is not None
            async for chunk in process.stdout:
                data += chunk[: MAX_SECRET_BYTES + 1 - len(data)]
            return await process.wait(), bytes(data)
    finally:
        with anyio.CancelScope(shield=True):
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)  # its own group, and not reaped yet
            await process.aclose()


def _text(data: bytes, where: str) -> str:
    if len(data) > MAX_SECRET_BYTES:
        raise SecretProblem(f"{where}: larger than {MAX_SECRET_BYTES} bytes; not a secret")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise SecretProblem(f"{where}: it is not text") from None


def _where(ref: CredentialRef) -> str:
    """The source in words. Arguments of a command may be secrets: only its program is named."""
    match ref.source:
        case "env":
            source = f"the variable {ref.name}"
        case "file":
            source = f"the file {ref.name}"
        case "systemd":
            source = f"the systemd credential {ref.name}"
        case "command":
            source = f"the command {os.path.basename(ref.argv[0])}" if ref.argv else "the command"
    return f"credential {ref.label}: {source}"


def no_secret(problem: SecretProblem, *, at: float) -> NotStarted:
    """The end of a call that had no secret to carry."""
    return NotStarted(
        error="OLD_SECRET" if problem.is_old else "NO_SECRET", text=str(problem), at=at, gone=True
    )
