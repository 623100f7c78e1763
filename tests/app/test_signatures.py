"""Signatures through a daemon: listed, extended by a user, and corrected after a wrong verdict."""

import json
import stat
import tomllib
from pathlib import Path

import pytest
from tests.support.daemon import running

from fallbackd_client.errors import RpcError

CLIS = ("codex", "opencode", "gemini", "claude", "numasec", "copilot", "aider", "goose", "qwen")
CLIS += ("kimi", "crush", "hermes")
APIS = ("openai-http", "anthropic-http", "google-http", "bedrock-http", "azure-http")
APIS += ("openrouter-http", "ollama-http")

CONFIG = """\
[backends.own]
kind = "generic-cli"
command = ["/bin/sh", "-c", "echo 'quack 4711: sk-secret1234567890 no more ducks' >&2; exit 3"]

[chains]
own = []

[[signatures]]
id = "house-duck"
kind = "copilot"
pattern = 'out of ducks'
reason = "usage_limit"
"""


async def test_every_kind_lists_its_signatures_and_the_users_come_first(tmp_path: Path) -> None:
    async with running(tmp_path, CONFIG) as daemon:
        found = await daemon.client.call("signatures.list", {"kind": "copilot"})
        sources = [one["source"] for one in found["signatures"]]
        assert found["signatures"][0]["id"] == "house-duck"
        assert sources == sorted(sources, key=["yours", "vendor", "common"].index)
        for kind in (*CLIS, *APIS, "generic"):
            assert kind in found["kinds"]
            listed = await daemon.client.call("signatures.list", {"kind": kind})
            assert listed["signatures"][-1]["source"] == "common"


async def test_a_users_signature_holds_for_a_kind_that_is_only_read(tmp_path: Path) -> None:
    async with running(tmp_path, CONFIG) as daemon:
        evidence = {"text": "we are out of ducks today", "stream": "stderr", "exit_code": 1}
        found = await daemon.client.call("classify", {"kind": "copilot", "evidence": evidence})
        assert (found["reason"], found["signature"]) == ("usage_limit", "house-duck")
        found = await daemon.client.call("classify", {"kind": "aider", "evidence": evidence})
        assert found["signature"] != "house-duck"


async def test_a_wrong_verdict_keeps_a_private_sample_and_its_signature_works(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, CONFIG) as daemon:
        call = daemon.client.call
        ended = await call("delegate", {"prompt": "x", "backend": "own", "wait": "finished"})
        name = ended["delegation"]
        params = {"delegation": name, "reason": "billing", "note": "key sk-secret1234567890"}
        found = await call("classification.wrong", params)
        sample = Path(found["sample_path"])
        assert stat.S_IMODE(sample.stat().st_mode) == 0o600
        assert stat.S_IMODE(sample.parent.stat().st_mode) == 0o700
        kept = json.loads(sample.read_text())
        assert (kept["right_reason"], kept["verdict"]["reason"]) == ("billing", "unknown")
        assert "no more ducks" in kept["output"]
        assert "secret" not in sample.read_text()
        row = json.loads(Path(found["row_path"]).read_text())
        assert (row["text"], row["reason"]) == (kept["output"], "billing")
        assert "note" not in row
        pasted = found["signature_toml"]
        assert tomllib.loads(pasted)["signatures"][0]["reason"] == "billing"

        daemon.config_path.write_text(f"{CONFIG}\n{pasted}")
        await call("config.reload", {})
        evidence = {"text": "quack 12: and so on", "stream": "stderr", "exit_code": 3}
        found = await call("classify", {"backend": "own", "evidence": evidence})
        assert found["reason"] == "billing"


async def test_what_cannot_be_judged_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path, CONFIG) as daemon:
        with pytest.raises(RpcError, match="no delegation"):
            await daemon.client.call("classification.wrong", {"delegation": "nothing"})
        ended = await daemon.client.call(
            "delegate", {"prompt": "x", "backend": "own", "wait": "finished"}
        )
        params = {"delegation": ended["delegation"], "reason": "hungry"}
        with pytest.raises(RpcError, match="is not a failure reason"):
            await daemon.client.call("classification.wrong", params)


async def test_the_story_shows_by_which_signature_a_failure_was_understood(tmp_path: Path) -> None:
    config = CONFIG.replace("quack 4711: sk-secret1234567890 no more ducks", "Error: HTTP 429")
    async with running(tmp_path, config) as daemon:
        ended = await daemon.client.call(
            "delegate", {"prompt": "x", "backend": "own", "wait": "finished"}
        )
        story = await daemon.client.call("explain", {"delegation": ended["delegation"]})
        shown = [one["evidence"] for one in story["decisions"] if one["evidence"]]
        assert shown[0]["signature"] == ended["attempts"][0]["failure"]["signature"] != ""
        assert (shown[0]["reason"], shown[0]["confidence"]) == ("rate_limit", "text")
        assert "429" in shown[0]["text"]


async def test_an_explanation_names_the_users_signature_and_shows_no_secret(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, CONFIG) as daemon:
        text = "we are out of ducks today, sk-secret1234567890"
        evidence = {"text": text, "stream": "stderr", "exit_code": 1}
        params = {"kind": "copilot", "evidence": evidence}
        found = await daemon.client.call("classification.explain", params)
        assert found["failure"] == await daemon.client.call("classify", params)
        assert found["because"] == "a line is known by the signature house-duck"
        assert len(found["statements"]) == 1
        assert "sk-secret" not in json.dumps(found)


async def test_what_a_sample_says_is_learned_kept_and_forgotten(tmp_path: Path) -> None:
    async with running(tmp_path, CONFIG) as daemon:
        call = daemon.client.call
        ended = await call("delegate", {"prompt": "x", "backend": "own", "wait": "finished"})
        params = {"delegation": ended["delegation"], "reason": "billing"}
        sample = Path((await call("classification.wrong", params))["sample_path"])
        made = await call("classification.train", {})
        (tried,) = made["samples"]
        assert tried["right"] == "billing" != tried["before"]
        assert tried["after"] == "billing"
        assert tried["unseen"] == tried["before"]  # there was nothing else to learn from
        weights = Path(made["path"])
        assert stat.S_IMODE(weights.stat().st_mode) == 0o600
        text = "quack 12: no more ducks"
        evidence = {"text": text, "stream": "stderr", "exit_code": 3}
        asked = {"backend": "own", "evidence": evidence}
        assert (await call("classify", asked))["reason"] == "billing"
        found = await call("classification.explain", asked)
        assert found["reasons"][0]["reason"] == "billing"
        await call("health", {"action": "clear"})
        again = await call("delegate", {"prompt": "x", "backend": "own", "wait": "finished"})
        assert again["attempts"][0]["failure"]["reason"] == "billing"

    async with running(tmp_path, CONFIG) as daemon:
        call = daemon.client.call
        assert (await call("classify", asked))["reason"] == "billing"
        sample.unlink()
        forgotten = await call("classification.train", {})
        assert (forgotten["path"], forgotten["samples"]) == (None, [])
        assert not weights.exists()
        assert (await call("classify", asked))["reason"] == "unknown"


async def test_weights_for_another_release_and_broken_samples_are_passed_over(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, CONFIG) as daemon:
        call = daemon.client.call
        ended = await call("delegate", {"prompt": "x", "backend": "own", "wait": "finished"})
        delegation = ended["delegation"]
        await call("classification.wrong", {"delegation": delegation, "reason": "billing"})
        found = await call(
            "classification.wrong", {"delegation": delegation, "reason": "cancelled"}
        )
        samples = Path(found["sample_path"]).parent
        (samples / "torn.json").write_text("{")
        made = await call("classification.train", {})
        assert (made["path"], made["samples"], made["passed_over"]) == (None, [], 1)
        (samples.parent / "weights.json").write_text(
            '{"base": 1, "failure": {"whole": {"1": 9.0}}}'
        )
    async with running(tmp_path, CONFIG) as daemon:
        evidence = {"text": "All is well.", "stream": "unknown"}
        assert await daemon.client.call("classify", {"evidence": evidence}) is None


@pytest.mark.parametrize("now_at", [1e308, 1e18, 9223372036854775808])
async def test_an_instant_that_no_calendar_has_is_refused(tmp_path: Path, now_at: float) -> None:
    async with running(tmp_path) as daemon:
        evidence = {"text": "429, resets 4:20am"}
        with pytest.raises(RpcError) as refused:
            await daemon.client.call("classify", {"evidence": evidence, "now_at": now_at})
        assert refused.value.code == -32602
        late = {"evidence": evidence, "now_at": 249_999_999_999}
        assert (await daemon.client.call("classify", late))["reason"] == "usage_limit"
