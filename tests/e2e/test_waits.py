"""The real opencode in front of a provider that throttles: how long a caller is held."""

from pathlib import Path

import pytest
from tests.e2e.scenes import scene
from tests.e2e.test_taken_up import has_server


async def test_throttles_in_the_middle_of_answers_do_not_renew_patience(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        await has_server(s)
        s.provider.log.clear()
        s.provider.behave("opencode", "rate_limit_mid")
        done = await s.delegate("opencode", then="codex", mode="interactive")
        assert done["served_by"] == "codex", s.daemon.log()
        # By itself it asks six times in a minute; a second failure is past five seconds already.
        assert 1 <= len(s.provider.calls("opencode")) <= 3


@pytest.mark.parametrize(
    ("mode", "retry_after_s", "calls"), [("interactive", 60, 1), ("batch", 90, 1), ("batch", 10, 2)]
)
async def test_a_stated_time_is_waited_for_once_and_within_patience_only(
    tmp_path: Path, mode: str, retry_after_s: int, calls: int
) -> None:
    async with scene(tmp_path) as s:
        await has_server(s)
        s.provider.log.clear()
        s.provider.behave("opencode", "429", retry_after_s=retry_after_s)
        done = await s.delegate("opencode", then="codex", mode=mode)
        assert done["served_by"] == "codex", s.daemon.log()
        assert [one["backend"] for one in done["attempts"]] == ["opencode", "codex"]
        assert done["attempts"][0]["failure"]["reason"] == "rate_limit"
        assert len(s.provider.calls("opencode")) == calls
