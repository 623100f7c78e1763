"""A second account of an agent: added, logged in or not, used when the first is at its limit."""

import base64
import json
import shutil
import sys
import tomllib
from pathlib import Path

from tests.acceptance.test_built_in_chains import ANSWERS, LIMITED
from tests.support.agents import program
from tests.support.command import Ran, run_client
from tests.support.daemon import Daemon, running

TWO_ACCOUNTS = f"""if [ -z "$CODEX_HOME" ]; then {LIMITED}; fi
{ANSWERS["codex"].replace("by codex", "by the account in '$CODEX_HOME'")}"""
COMMENTED = '# mine\n[chains]  # in my order\n"*" = ["claude", "codex"] # and no more\n'


async def client(daemon: Daemon, *words: str) -> Ran:
    return await run_client(daemon.socket, *words, cwd=str(daemon.work_dir), env=daemon.env)


def token(email: str) -> str:
    claims = base64.urlsafe_b64encode(json.dumps({"email": email}).encode()).decode()
    return f"e30.{claims.rstrip('=')}.c2ln"


async def test_work_moves_to_the_second_account_of_the_same_agent(tmp_path: Path) -> None:
    async with running(tmp_path, COMMENTED) as daemon:
        program(daemon.bin_dir, "codex", TWO_ACCOUNTS)
        place = daemon.home / ".codex-work"
        added = await client(daemon, "accounts", "add", "codex", "work")
        assert added.code == 0, added.err
        assert f"Log in with: CODEX_HOME={place} codex login" in added.out
        assert place.stat().st_mode & 0o777 == 0o700
        text = daemon.config_path.read_text()
        assert text.startswith("# mine\n[chains]  # in my order\n")
        assert '"*" = ["claude", "codex", "codex-work"] # and no more\n' in text
        assert 'codex = ["codex-work", "opencode", "claude", "gemini"]\n' in text
        assert f'env = {{CODEX_HOME = "{place}"}}' in text
        assert (await client(daemon, "config", "check")).out.endswith("good\n")

        (daemon.home / ".codex").mkdir()
        login = {"tokens": {"id_token": token("me@example.com")}}
        (daemon.home / ".codex/auth.json").write_text(json.dumps(login))
        listed = (await client(daemon, "--json", "accounts")).json["accounts"]
        assert [(one["backend"], one["logged_in"], one["who"]) for one in listed] == [
            ("codex", True, "me@example.com"),
            ("codex-work", False, None),
        ]
        shown = await client(daemon, "accounts", "list")
        assert f"codex-work: log in with: CODEX_HOME={place} codex login" in shown.out

        asked = await client(daemon, "delegate", "--backend", "codex", "hi")
        assert (asked.code, asked.out) == (0, f"by the account in {place}\n"), asked.err
        assert asked.err.endswith("continuing with codex-work.\n")
        again = await client(daemon, "accounts", "add", "codex", "work")
        assert (again.code, daemon.config_path.read_text()) == (2, text)
        assert "is configured already" in again.err


async def test_an_account_that_was_added_without_a_daemon_is_put_into_the_chains_with_one(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as daemon:
        program(daemon.bin_dir, "fallbackd", f'exec {sys.executable} -m fallbackd "$@"')
        await daemon.stop()
        added = await client(daemon, "accounts", "add", "codex", "work")
        assert added.code == 0, added.err
        again = "fallbackd-client accounts add codex work"
        assert f"with the same command when one runs: {again}" in added.err
        assert "codex-work" not in tomllib.loads(daemon.config_path.read_text()).get("chains", {})

        await daemon.start()
        ran = await client(daemon, *again.split()[1:])
        assert ran.code == 0, ran.err
        assert "codex-work was configured already; added it to chains" in ran.out
        chains = tomllib.loads(daemon.config_path.read_text())["chains"]
        assert chains["codex"][0] == "codex-work"
        text = daemon.config_path.read_text()
        assert (await client(daemon, *again.split()[1:])).code == 2
        assert daemon.config_path.read_text() == text


async def test_a_backend_of_that_name_that_is_no_account_is_left_alone(tmp_path: Path) -> None:
    config = '[backends.codex-work]\nkind = "generic-cli"\ncommand = ["x"]\n'
    async with running(tmp_path, config) as daemon:
        refused = await client(daemon, "accounts", "add", "codex", "work")
        assert (refused.code, daemon.config_path.read_text()) == (2, config)
        assert "is not an account of codex; take another name" in refused.err


async def test_an_account_without_a_login_is_passed_over_and_its_own_command_named(
    tmp_path: Path,
) -> None:
    config = '[backends.claude-work]\nkind = "claude"\nenv = { CLAUDE_CONFIG_DIR = "~/other" }\n'
    async with running(tmp_path, config) as daemon:
        native = shutil.which("true")
        assert native is not None
        shutil.copy(native, daemon.bin_dir / "claude")
        (daemon.home / ".claude").mkdir()
        (daemon.home / ".claude/.credentials.json").write_text("{}")
        refused = await client(daemon, "delegate", "--chain", "claude-work,claude-work", "hi")
        assert refused.code == 78, refused.err
        own = f"log in with: CLAUDE_CONFIG_DIR={daemon.home}/other claude auth login"
        assert f"claude-work: {own}" in refused.err
        (daemon.home / "other").mkdir()
        (daemon.home / "other/.credentials.json").write_text("{}")
        resolved = await daemon.client.call("resolve", {"chain": ["claude-work"]})
        assert resolved["backend"] == "claude-work"


async def test_a_value_is_set_with_the_comments_kept_or_not_at_all(tmp_path: Path) -> None:
    async with running(tmp_path, COMMENTED) as daemon:
        changed = await client(daemon, "config", "set", "defaults.settle_s", "2.5")
        assert changed.code == 0, changed.err
        text = daemon.config_path.read_text()
        assert text.startswith(COMMENTED)
        assert "[defaults]\nsettle_s = 2.5\n" in text
        for key, value, why in (
            ("defaults.settle_s", "1000", "settle_s"),
            ("defaults.setle_s", "1", "Did you mean"),
            ("chains", "5", "chains"),
        ):
            refused = await client(daemon, "config", "set", key, value)
            assert refused.code == 78, refused.out
            assert why in refused.err
            assert "left as it is" in refused.err
        daemon.config_path.write_text(text + '[notify]\nevents = ["zzz"]\n')
        refused = await client(daemon, "config", "set", "notify.events", '["failed_over", "bogus"]')
        assert refused.code == 78, refused.out
        assert 'notify.events[1]: "bogus": must be one of' in refused.err
        assert (await client(daemon, "config", "set", "defaults.settle_s", "3")).code == 0
        daemon.config_path.write_text(text)
        assert (await client(daemon, "config", "set", "not a key", "1")).code == 2
        assert daemon.config_path.read_text() == text
        assert (await client(daemon, "config", "path")).out == f"{daemon.config_path}\n"
        await daemon.stop()
        without = await client(daemon, "config", "set", 'chains."*"', '["codex"]')
        assert without.code == 0, without.err
        assert '"*" = ["codex"] # and no more\n' in daemon.config_path.read_text()
