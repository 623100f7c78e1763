"""What is known of a key outlives the daemon, and ends when the key is another one."""

import hashlib
from pathlib import Path

import pytest
from tests.support.daemon import Daemon, running
from tests.support.provider import Provider, provider

FIRST, SECOND = "sk-first-0123456789", "sk-second-987654321"
REVOKED = "token_revoked: the token has been revoked"


def config(url: str, source: str) -> str:
    return (
        f'[backends.api]\nkind = "openai-http"\nmodel = "m"\nbase_url = "{url}/v1"\n'
        f'credentials = [{{ label = "main", {source} }}]\n[chains]\napi = []\n'
    )


async def delegate(daemon: Daemon) -> str:
    done = await daemon.client.call(
        "delegate", {"prompt": "x", "backend": "api", "wait": "finished"}
    )
    return str(done["state"])


async def mark_of(daemon: Daemon) -> str:
    listed = await daemon.client.call("health", {"action": "list"})
    return str(listed["health"]["api"]["state"])


@pytest.mark.parametrize("behaviour", ["revoked", "billing", "usage_limit", "retry_after"])
@pytest.mark.parametrize("source", ["env", "file", "command"])
async def test_a_mark_on_a_key_survives_a_kill_and_ends_with_another_key(
    tmp_path: Path, source: str, behaviour: str
) -> None:
    key = tmp_path / "key"
    key.write_text(FIRST)
    key.chmod(0o600)
    places = {
        "env": 'env = "ACME_WORD"',
        "file": f'file = "{key}"',
        "command": f'command = ["cat", "{key}"]',
    }
    async with provider() as api:
        refuse(api, behaviour, FIRST)
        api.behave("acme", "ok", credential=SECOND)
        text = config(api.url("acme"), places[source])
        async with running(tmp_path, text, env={"ACME_WORD": FIRST}) as daemon:
            assert await delegate(daemon) != "succeeded"
            calls, state = len(api.log), await mark_of(daemon)
            assert state in ("broken", "rate_limited")
            for _ in range(2):
                await daemon.kill()
                await daemon.start()
                assert await delegate(daemon) == "refused"
            assert (len(api.log), await mark_of(daemon)) == (calls, state)
            await daemon.kill()
            daemon.env["ACME_WORD"] = SECOND
            key.write_text(SECOND)
            await daemon.start()
            assert await delegate(daemon) == "succeeded"
            assert_not_kept(daemon)


def refuse(api: Provider, behaviour: str, key: str) -> None:
    match behaviour:
        case "revoked":
            api.behave("acme", "refuse", status=401, message=REVOKED, credential=key)
        case "billing":
            api.behave("acme", "402", credential=key)
        case "usage_limit":
            api.behave("acme", "usage_limit", credential=key)
        case _:
            api.behave("acme", "429", retry_after_s=3600, credential=key)


def assert_not_kept(daemon: Daemon) -> None:
    """Neither a key nor a digest of it that can be made without the private key of the daemon."""
    for value in (FIRST, SECOND):
        raw = value.encode()
        plain = [hashlib.new(name, raw).hexdigest() for name in ("md5", "sha1", "sha256", "sha512")]
        plain.append(hashlib.blake2b(raw, digest_size=16).hexdigest())
        for path in daemon.state_dir.glob("fallbackd.db*"):
            kept = path.read_bytes()
            for shown in (value, *plain):
                assert shown.encode() not in kept
    assert (daemon.state_dir / "digest.key").stat().st_mode & 0o777 == 0o600
