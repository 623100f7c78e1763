"""Secrets by reference: found at the moment of use, refused with a word about what to do."""

import base64
import json
import os
import sys
from pathlib import Path

import pytest
from tests.support.clock import ManualClock

from fallbackd.core.protocol import CommandLine, CredentialRef, HttpRequest, NotStarted
from fallbackd.ports.transport import SecretProblem
from fallbackd.transports.http.transport import HttpTransport
from fallbackd.transports.process.transport import ProcessTransport
from fallbackd.transports.secrets import MAX_SECRET_BYTES, SecretSources, no_secret

SECRET = "sk-test-0123456789"
NOW = 1_800_000_000.0


class Place:
    """A directory with sources in it, and what resolves them at an instant."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.environ = {"PATH": os.environ["PATH"], "HOME": str(path)}
        self.now = NOW
        self.secrets = SecretSources(environ=self.environ, now=lambda: self.now)

    def file(self, text: str, name: str = "key", mode: int = 0o600) -> CredentialRef:
        path = self.path / name
        path.write_text(text)
        path.chmod(mode)
        return CredentialRef(label="k", source="file", name=str(path))

    def program(self, body: str, field: str | None = None) -> CredentialRef:
        path = self.path / "helper.py"
        path.write_text(
            f"import sys, os\nwith open({str(self.path / 'runs')!r}, 'a') as f:\n"
            f"    f.write('x')\n{body}\n"
        )
        return CredentialRef(
            label="k", source="command", argv=(sys.executable, str(path)), field=field
        )

    @property
    def runs(self) -> int:
        return len((self.path / "runs").read_text())

    async def problem(self, ref: CredentialRef) -> str:
        with pytest.raises(SecretProblem) as raised:
            await self.secrets.read(ref)
        assert SECRET not in str(raised.value)
        return str(raised.value)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def env(name: str = "KEY") -> CredentialRef:
    return CredentialRef(label="k", source="env", name=name)


# --- where it is found -------------------------------------------------------------------------


async def test_a_variable_a_file_and_a_command_give_the_same_secret(place: Place) -> None:
    place.environ["KEY"] = f" {SECRET}\n"
    for ref in (env(), place.file(f"{SECRET}\n# note"), place.program(f"print('{SECRET}')")):
        assert await place.secrets.read(ref) == SECRET


async def test_a_systemd_credential_is_read_from_the_directory_that_systemd_made(
    place: Place,
) -> None:
    ref = CredentialRef(label="k", source="systemd", name="acme.key")
    assert "LoadCredential=acme.key:" in await place.problem(ref)
    (place.path / "acme.key").write_text(SECRET)
    place.environ["CREDENTIALS_DIRECTORY"] = str(place.path)
    assert await place.secrets.read(ref) == SECRET


async def test_a_path_from_the_home_directory_and_a_link_are_followed(place: Place) -> None:
    place.file(SECRET, "real")
    (place.path / "link").symlink_to("real")
    ref = CredentialRef(label="k", source="file", name="~/link")
    assert await place.secrets.read(ref) == SECRET


async def test_a_field_of_a_login_document_is_found_by_its_path(place: Place) -> None:
    ref = place.file(json.dumps({"tokens": {"access_token": SECRET}, "other": 1}))
    assert "is JSON: say where" in await place.problem(ref)
    named = CredentialRef(label="k", source="file", name=ref.name, field="tokens.access_token")
    assert await place.secrets.read(named) == SECRET
    wrong = CredentialRef(label="k", source="file", name=ref.name, field="tokens.nothing")
    assert "no text at its field 'tokens.nothing'" in await place.problem(wrong)


async def test_what_was_replaced_a_moment_ago_is_what_is_used(place: Place) -> None:
    ref = place.file("old")
    assert await place.secrets.read(ref) == "old"
    place.file("new", "other")
    (place.path / "other").rename(ref.name)
    assert await place.secrets.read(ref) == "new"
    assert Path(ref.name).read_text() == "new"


# --- what is wrong with it ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        ("", 0o600, "is empty"),
        (" \n\n", 0o600, "is empty"),
        (SECRET, 0o644, "chmod 600"),
        (SECRET, 0o620, "chmod 600"),
        ("sk\x00key", 0o600, "characters that no key has"),
        ("schlüssel", 0o600, "characters that no key has"),
        ('{"half": ', 0o600, "begins like JSON and is none"),
        ("x" * (MAX_SECRET_BYTES + 1), 0o600, "not a secret"),
    ],
)
async def test_a_file_that_cannot_be_used_says_why(
    place: Place, text: str, mode: int, words: str
) -> None:
    found = await place.problem(place.file(text, mode=mode))
    assert words in found
    assert found.startswith("credential k: the file ")


async def test_what_is_not_there_says_where_it_was_looked_for(place: Place) -> None:
    assert "the variable KEY is not set" in await place.problem(env())
    gone = CredentialRef(label="k", source="file", name=str(place.path / "gone"))
    assert "No such file" in await place.problem(gone)
    directory = CredentialRef(label="k", source="file", name=str(place.path))
    assert "not a regular file" in await place.problem(directory)
    os.mkfifo(place.path / "pipe", 0o600)
    pipe = CredentialRef(label="k", source="file", name=str(place.path / "pipe"))
    assert "not a regular file" in await place.problem(pipe)
    absent = CredentialRef(label="k", source="command", argv=("/no/such/program", SECRET))
    assert "the command program" in await place.problem(absent)


def login(**fields: object) -> str:
    return json.dumps({"access": SECRET, **fields})


@pytest.mark.parametrize(
    "over",
    [
        {"expires_at": NOW - 1},
        {"expiry_date": int((NOW - 1) * 1000)},
        {"expiresAt": "2020-01-01T00:00:00Z"},
        {"expires": str(NOW - 1)},
    ],
)
async def test_one_that_is_over_by_its_own_date_is_old_unless_its_owner_renews_it(
    place: Place, over: dict[str, object]
) -> None:
    def ref(text: str) -> CredentialRef:
        name = place.file(text).name
        return CredentialRef(label="k", source="file", name=name, field="access")

    assert "log in again" in await place.problem(ref(login(**over)))
    seen = await place.secrets.look(ref(login(**over)))
    assert (seen.is_old, seen.digest) == (True, None)
    renewed = ref(login(**over, refresh_token="r"))
    assert await place.secrets.read(renewed) == SECRET


def token(**claims: object) -> str:
    middle = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"eyJhbGciOiJub25lIn0.{middle}.c2ln"


async def test_a_token_says_by_itself_when_it_is_over(place: Place) -> None:
    good, old = token(exp=NOW + 60), token(exp=NOW - 60)
    assert await place.secrets.read(place.file(good)) == good
    assert "log in again" in await place.problem(place.file(old))


async def test_a_login_is_known_by_its_account_whatever_its_tokens_are(place: Place) -> None:
    async def identity(text: str, field: str | None = None) -> str:
        name = place.file(text).name
        ref = CredentialRef(label="k", source="file", name=name, field=field)
        return await place.secrets.identity(ref)

    def login_of(account: str, access: str) -> str:
        return json.dumps({"tokens": {"access_token": access, "account_id": account}})

    field = "tokens.access_token"
    one = await identity(login_of("acct-1", "a"), field)
    assert one == await identity(login_of("acct-1", "renewed"), field)
    assert one != await identity(login_of("acct-2", "a"), field)
    said = await identity(token(iss="https://id.example", sub="u1", exp=NOW + 60))
    assert said == await identity(token(iss="https://id.example", sub="u1", exp=NOW + 90))
    assert said != await identity(token(iss="https://other.example", sub="u1", exp=NOW + 60))
    assert await identity(SECRET) == SECRET


# --- commands ----------------------------------------------------------------------------------


async def test_the_answer_of_a_command_is_used_until_it_is_over(place: Place) -> None:
    body = f'print(\'{{"token": "{SECRET}", "expires_at": {NOW + 100}}}\')'
    ref = place.program(body, field="token")
    for _ in range(3):
        assert await place.secrets.read(ref) == SECRET
    assert place.runs == 1
    place.now = NOW + 71  # it has to arrive before it is over
    await place.secrets.read(ref)
    assert place.runs == 2
    await place.secrets.look(ref, fresh=True)
    assert place.runs == 3


async def test_a_command_that_fails_hangs_or_chatters_is_told_by_its_name_alone(
    place: Place,
) -> None:
    failing = place.program(f"print('{SECRET}'); sys.exit(3)")
    assert "ended with status 3: run it by hand" in await place.problem(failing)
    loud = place.program(f"sys.stdout.write('{SECRET}' * 10000)")
    assert "not a secret" in await place.problem(loud)
    place.secrets = SecretSources(environ=place.environ, now=lambda: NOW, command_limit_s=0.2)
    hanging = place.program("import time; time.sleep(1000)")
    assert "did not end within 0.2 s" in await place.problem(hanging)


async def test_a_command_sees_nothing_of_what_systemd_promised_to_the_daemon(place: Place) -> None:
    place.environ["NOTIFY_SOCKET"] = "/run/notify"
    ref = place.program("print(os.environ.get('NOTIFY_SOCKET', 'clean'))")
    assert await place.secrets.read(ref) == "clean"


# --- looks -------------------------------------------------------------------------------------


async def test_a_look_tells_one_material_from_another_and_never_holds_it(place: Place) -> None:
    first = await place.secrets.look(place.file("one"))
    again = await place.secrets.look(place.file("one"))
    other = await place.secrets.look(place.file("two"))
    assert first.digest == again.digest != other.digest
    assert b"one" not in (first.digest or b"")
    stranger = await SecretSources(environ=place.environ, now=lambda: NOW).look(place.file("one"))
    assert stranger.digest != first.digest


# --- on its way to a call ----------------------------------------------------------------------


async def test_a_request_without_its_secret_never_leaves(place: Place) -> None:
    clock = ManualClock(NOW)
    transport = HttpTransport(clock=clock, environ=place.environ, secrets=place.secrets)
    call = HttpRequest(
        method="POST",
        url="http://127.0.0.1:9/v1",
        secret_headers={"Authorization": "Bearer {credential}"},
        credential=env(),
    )
    running = await transport.open(call, attempt="d.1", directory=str(place.path), env={})
    assert [chunk async for chunk in running.chunks()] == []
    ended = running.exit
    assert isinstance(ended, NotStarted)
    assert (ended.error, "KEY is not set" in ended.text) == ("NO_SECRET", True)


async def test_a_program_gets_the_chosen_secret_in_its_variable_and_no_argument(
    place: Place,
) -> None:
    place.environ.update(KEY_A=SECRET, KEY_B="other", ACME_KEY="inherited")
    transport = ProcessTransport(environ=place.environ, now=lambda: NOW, secrets=place.secrets)
    call = CommandLine(
        argv=("/bin/sh", "-c", 'printf "%s|%s|%s" "$ACME_KEY" "$KEY_A" "$KEY_B"'),
        cwd=str(place.path),
        unset=("KEY_A", "KEY_B", "ACME_KEY"),
        credential=CredentialRef(label="k", source="env", name="KEY_A", into="ACME_KEY"),
    )
    assert SECRET not in repr(call)
    directory = place.path / "run"
    directory.mkdir()
    try:
        running = await transport.open(call, attempt="d.1", directory=str(directory), env={})
        data = b"".join([chunk.data async for chunk in running.chunks()])
    finally:
        await transport.aclose()
    assert data.decode() == f"{SECRET}||"
    kept = [one.read_text(errors="replace") for one in directory.iterdir() if one.is_file()]
    assert [text for text in kept if SECRET in text] == [data.decode()]  # what it printed itself


async def test_a_program_without_its_secret_is_not_started(place: Place) -> None:
    transport = ProcessTransport(environ=place.environ, now=lambda: NOW, secrets=place.secrets)
    ref = CredentialRef(label="k", source="env", name="KEY_A", into="ACME_KEY")
    call = CommandLine(argv=("/bin/true",), cwd="/", credential=ref)
    running = await transport.open(call, attempt="d.1", directory=str(place.path), env={})
    assert [chunk async for chunk in running.chunks()] == []
    assert running.exit == NotStarted(
        error="NO_SECRET", text=str(await _problem_of(place, ref)), at=NOW, gone=True
    )
    await transport.aclose()


async def _problem_of(place: Place, ref: CredentialRef) -> SecretProblem:
    try:
        await place.secrets.read(ref)
    except SecretProblem as problem:
        return problem
    raise AssertionError("it was found")


def test_the_end_of_a_call_tells_old_from_missing() -> None:
    assert no_secret(SecretProblem("x", is_old=True), at=1).error == "OLD_SECRET"
    assert no_secret(SecretProblem("x"), at=1).error == "NO_SECRET"
