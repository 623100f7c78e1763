import pytest

from fallbackd_client.cli import exits


@pytest.mark.parametrize(
    ("state", "waited", "wanted"),
    [
        ("succeeded", True, 0),
        ("failed", True, 1),
        ("cancelled", True, 1),
        ("refused", True, 75),
        ("handed_back", True, 75),
        ("awaiting_answer", True, 75),
        ("running", False, 0),
        ("queued", False, 0),
        ("waiting", False, 0),
        ("running", True, 75),
        ("of_a_later_version", True, 75),
    ],
)
def test_each_state_ends_in_its_code(state: str, waited: bool, wanted: int) -> None:
    assert exits.of_delegation(state, waited=waited) == wanted


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        (-32001, 2),
        (-32002, 75),
        (-32003, 75),
        (-32004, 75),
        (-32005, 77),
        (-32006, 78),
        (-32007, 75),
        (-32008, 75),
        (-32602, 2),
        (-32601, 2),
        (-32603, 1),
        (-32099, 1),
    ],
)
def test_each_error_ends_in_its_code(code: int, wanted: int) -> None:
    assert exits.of_error(code) == wanted
