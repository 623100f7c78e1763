"""What is shown holds nothing secret."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fallbackd_conversations.redact import _SECRETS, _is_telling, excerpt, redact

PIECES = ["key", "token", "sk", "ya29", "eyj", "aiza", "bearer", "xoxb", "://", "@", ".", "/", "+"]
PIECES += ["-", "_", "=", ":", "?", "&", " ", '"', "a", "9", "0123456789", "deadbeef", "E"]

SECRETS = [
    "sk-ant-api03-AbCdEfGhIjKlMnOpQrSt",
    "sk-fake*************************0000",
    "AIzaSyA1234567890abcdefghijklmnopqrstu",
    "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N",
    "0123456789abcdef0123456789abcdef",
    "AKIAIOSFODNN7EXAMPLE",
    "xoxb-123456789012-abcdefABCDEF",
    "somebody@example.org",
]


@pytest.mark.parametrize("secret", SECRETS)
def test_what_looks_like_a_secret_is_replaced(secret: str) -> None:
    assert secret not in redact(f"the provider refused {secret} just now")


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer abc123def456ghi",
        'api_key="s3cr3tvalue"',
        "GET https://api.test/v1?key=abc123secret&x=1",
        "https://user:hunter22@host.test/path",
        "ACCESS_TOKEN=abc123secret",
    ],
)
def test_a_named_secret_is_replaced(text: str) -> None:
    shown = redact(text)
    for part in ("abc123", "s3cr3t", "hunter22"):
        assert part not in shown


@pytest.mark.parametrize(
    "text",
    [
        "HTTP 429 Too Many Requests",
        "The model `gpt-5-codex` does not exist or you do not have access to it.",
        "resets at 2026-07-30T16:11:46Z, key limit exceeded",
        "Limit 30000, Used 29000, tokens per min (TPM)",
        "src/fallbackd/core/classify.py:120",
    ],
)
def test_plain_words_are_left_alone(text: str) -> None:
    assert redact(text) == text


COMMIT = "9fceb02d0ae598e95dc970b74767f19372d61af8"


@pytest.mark.parametrize(
    "text",
    [
        f"commit {COMMIT} (HEAD -> main)",
        f"{COMMIT}\trefs/heads/keys",
        f"index 83db48f..{COMMIT} 100644",
        f"git show {COMMIT}:src/monkey.py",
        f"the tokens are counted since\n{COMMIT}",
    ],
)
def test_a_commit_stays(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(
    "text",
    [
        f"GITHUB_TOKEN={COMMIT}",
        f"Authorization: token {COMMIT}",
        f"--api-key {COMMIT}",
        f"Invalid API key provided: {COMMIT}",
        f'{{"app_key": "{COMMIT}"}}',
        f"https://{COMMIT}@github.com/o/r",
        COMMIT.upper(),
        COMMIT + "00112233",
        COMMIT[:32],
    ],
)
def test_a_key_of_the_same_shape_goes(text: str) -> None:
    shown = redact(text)
    assert COMMIT[:32] not in shown.lower()
    assert redact(shown) == shown


def test_redacting_twice_changes_nothing_more() -> None:
    once = redact(" ".join(SECRETS))
    assert redact(once) == once


def test_an_excerpt_is_one_line_without_control_characters() -> None:
    shown = excerpt("\x1b[91mError:\x1b[0m a\nb\tc\x07\u202e d" + "z" * 1000)
    assert shown.startswith("Error: a b c d")
    assert len(shown) == 400


def test_a_secret_at_the_cut_does_not_leave_its_half() -> None:
    shown = excerpt("x" * 390 + " sk-abcdefghijklmnop0123456789")
    assert "sk-abc" not in shown


@given(st.lists(st.sampled_from([*SECRETS, *PIECES]), max_size=12))
def test_no_secret_is_taken_for_plain_words(pieces: list[str]) -> None:
    text = "".join(pieces)
    assert _is_telling(text) or not any(pattern.search(text) for pattern, _ in _SECRETS)


@pytest.mark.parametrize("before", [0, 390, 1_500, 1_590, 1_599])
def test_a_long_secret_at_the_end_of_what_is_read_first_leaves_nothing(before: int) -> None:
    shown = excerpt(" " * before + "eyJ" + "a" * 1_700 + "." + "b" * 90 + ".c and more")
    assert shown == "[token] and more"
