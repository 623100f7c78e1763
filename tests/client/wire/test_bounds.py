import msgspec
import pytest

from fallbackd_client.wire.bounds import DelegationState, DirectoryPath, SessionName, SettleS
from fallbackd_client.wire.codes import END_STATES


@pytest.mark.parametrize("text", ["a", "x" * 200, "my session", "é 日本 🙂", "../../etc/passwd"])
def test_a_session_may_be_any_printable_text(text: str) -> None:
    assert msgspec.convert(text, SessionName) == text


@pytest.mark.parametrize("text", ["", "x" * 201, "a\n", "a\x00", "\x1b[2J", "a\u202eb", "a\u200b"])
def test_a_session_that_is_empty_long_or_unprintable_is_refused(text: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(text, SessionName)


def test_a_directory_may_be_any_path_and_no_path_has_a_nul() -> None:
    for path in ("/", "/a b", "/über\n/x", "/tmp/\ud7ff"):
        assert msgspec.convert(path, DirectoryPath) == path
    for path in ("", "/tmp/\x00x", "/tmp\x00", "\x00", "/x\n\x00"):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(path, DirectoryPath)


@pytest.mark.parametrize("seconds", [-0.1, 60.5])
def test_settling_has_bounds(seconds: float) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(seconds, SettleS)


def test_end_states_are_states() -> None:
    for state in END_STATES:
        assert msgspec.convert(state, DelegationState) == state
