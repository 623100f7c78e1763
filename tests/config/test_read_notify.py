"""`[notify]`: what is taken, and what is left out and said."""

import pytest

from fallbackd.config.load import load
from fallbackd.config.schema import Notify
from fallbackd.config.show import as_dict


def warned(text: str) -> list[str]:
    return [str(one) for one in load(text, path="/c/config.toml").warnings]


def test_without_a_table_nobody_is_told() -> None:
    assert load("", path="/c/config.toml").notify == Notify()


def test_an_address_is_taken_and_not_shown() -> None:
    text = '[notify]\nurl = "https://example.com/hook/token-123"\nevents = ["question"]\n'
    loaded = load(text, path="/c/config.toml")
    assert loaded.warnings == ()
    assert loaded.notify.url == "https://example.com/hook/token-123"
    assert loaded.notify.events == ("question",)
    assert "token-123" not in str(as_dict(loaded))


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://example.com/", "must be an address like https://example.com/hook"),
        ("http://example.com/t0ken", "must begin with https:// unless it is on this machine"),
        ("https://me:t0ken@example.com/", "must hold no user and no password"),
        ("http://[::1", "is no address"),
    ],
)
def test_an_address_that_cannot_be_used_is_left_out_and_never_shown(url: str, why: str) -> None:
    text = f'[notify]\nurl = "{url}"\n'
    assert warned(text) == [f"notify.url: {why}; it is left out."]
    assert load(text, path="/c/config.toml").notify.url is None


def test_a_command_that_is_one_text_and_an_unknown_event_are_said() -> None:
    text = '[notify]\ncommand = "notify-send hi"\nevents = ["failed"]\n'
    first, second = warned(text)
    assert 'must be a list of arguments, such as ["notify-send"' in first
    assert 'notify.events[0]: "failed": must be one of' in second
    assert second.endswith("; the default is used.")


def test_an_unknown_event_voids_no_other_one() -> None:
    text = '[notify]\nevents = ["failed", "question", "faild", "recovered"]\n'
    first, second = warned(text)
    assert first.startswith('notify.events[0]: "failed": must be one of "')
    assert second.startswith('notify.events[2]: "faild": must be one of "')
    assert first.endswith("; it is left out.")
    assert load(text, path="/c/config.toml").notify.events == ("question", "recovered")


def test_a_command_with_an_argument_that_is_no_text_is_not_run_without_it() -> None:
    text = '[notify]\ncommand = ["notify-send", 5, "{text}"]\n'
    (said,) = warned(text)
    assert said.startswith("notify.command[1]: must be text")
    assert said.endswith("; the whole list is left out.")
    assert load(text, path="/c/config.toml").notify.command == ()
