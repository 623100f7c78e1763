"""What follows from a policy alone is computed once for it, and never for another one."""

from msgspec import structs
from tests.support.playbook import policy_of

from fallbackd.core.policy import MOST, Policy, once


class Counted:
    def __init__(self) -> None:
        self.calls: list[tuple[Policy, str]] = []

    def __call__(self, policy: Policy, name: str) -> str | None:
        self.calls.append((policy, name))
        return f"{name} of {len(policy.backends)}" if name else None


def test_it_is_computed_once_for_the_same_arguments() -> None:
    counted, policy = Counted(), policy_of("a", "b")
    found = once(counted)
    assert [found(policy, name) for name in ("x", "y", "x", "", "")] == [
        "x of 2", "y of 2", "x of 2", None, None,
    ]  # fmt: skip
    assert [name for _, name in counted.calls] == ["x", "y", ""]


def test_a_changed_policy_begins_with_nothing() -> None:
    counted, policy = Counted(), policy_of("a", "b")
    found = once(counted)
    fewer = structs.replace(policy, backends={"a": policy.backends["a"]})
    assert [found(one, "x") for one in (policy, fewer, policy)] == ["x of 2", "x of 1", "x of 2"]
    assert [one for one, _ in counted.calls] == [policy, fewer]


def test_two_functions_do_not_take_each_other_s_values() -> None:
    policy = policy_of("a")
    assert once(lambda policy, name: name.upper())(policy, "x") == "X"
    assert once(lambda policy, name: name * 2)(policy, "x") == "xx"


def test_what_is_computed_makes_no_difference_between_policies() -> None:
    policy, other = policy_of("a"), policy_of("a")
    once(Counted())(policy, "x")
    assert policy == other


def test_it_is_bounded() -> None:
    counted, policy = Counted(), policy_of("a")
    found = once(counted)
    for number in range(MOST + 10):
        assert found(policy, str(number)) == f"{number} of 1"
    assert len(policy.computed) <= MOST
