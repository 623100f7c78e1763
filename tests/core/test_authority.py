"""What a process inside an attempt may ask: never more than the attempt itself."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from fallbackd.core.authority import (
    LEVELS,
    PERSON,
    Authority,
    Request,
    authority_in,
    by_default,
    lower_replay,
    meet,
    narrowed,
    nothing,
)
from fallbackd.core.ids import AttemptId, BackendId, DelegationId
from fallbackd.core.records import Delegation, Turn


def record(name: str = "d1", **fields: Any) -> Delegation:
    return structs.replace(
        Delegation(
            delegation=DelegationId(name),
            session="s",  # type: ignore[arg-type]
            requested=BackendId("a"),
            active=BackendId("a"),
            created_at=0.0,
            cwd="/w",
            turn=Turn(allow_metered=False),
        ),
        **fields,
    )


def inside(one: Delegation, **more: Any) -> Authority:
    env = more.pop("env", {})
    found = authority_in(
        one, AttemptId(f"{one.delegation}.1"), directory=one.cwd or "/private", env=env
    )
    return structs.replace(found, **more)


def refusal(found: Request | str) -> str:
    assert isinstance(found, str), found
    return found


def test_a_person_may_ask_for_everything() -> None:
    asked = Request(permissions="full", cwd="/state", env={"A": "b"}, allow_metered=True)
    assert narrowed(PERSON, asked) == asked


@pytest.mark.parametrize("own", LEVELS)
@pytest.mark.parametrize("asked", LEVELS)
def test_permissions_are_at_most_its_own_and_both_words_are_named(own: Any, asked: Any) -> None:
    found = narrowed(inside(record(permissions=own)), Request(permissions=asked, cwd="/w"))
    if LEVELS.index(asked) <= LEVELS.index(own):
        assert found == Request(permissions=asked, cwd="/w")
    else:
        assert f"asked for `{asked}`, this agent has `{own}`" in refusal(found)


@pytest.mark.parametrize(
    ("own", "wanted"), [("read", "read"), ("workspace", "workspace"), ("full", "workspace")]
)
def test_without_a_word_it_is_the_default_or_its_own(own: Any, wanted: str) -> None:
    authority = inside(record(permissions=own))
    assert by_default(authority) == wanted
    found = narrowed(authority, Request())
    assert isinstance(found, Request)
    assert found.permissions == wanted


@pytest.mark.parametrize(
    ("own", "asked", "cwd", "is_allowed"),
    [
        ("workspace", "workspace", "/w", True),
        ("workspace", "workspace", "/w/sub", True),
        ("workspace", "workspace", "/wx", False),
        ("workspace", "workspace", "/", False),
        ("workspace", "read", "/other", True),
        ("read", "read", "/other", True),
        ("full", "workspace", "/other", True),
        ("full", "full", "/home/state", False),
        ("full", "full", "/home/state/runs", False),
        ("full", "read", "/home", False),
        ("read", "read", "/home/state/runs/d2", False),
        ("read", "read", "", True),
    ],
)
def test_a_directory_is_where_it_may_write_or_read(
    own: Any, asked: Any, cwd: str, is_allowed: bool
) -> None:
    authority = inside(record(permissions=own), withheld=("/home/state",))
    found = narrowed(authority, Request(permissions=asked, cwd=cwd))
    assert isinstance(found, Request) is is_allowed
    if not is_allowed:
        assert refusal(found).startswith("cwd: ")


def test_its_own_directory_is_its_own_also_where_others_are_withheld() -> None:
    private = inside(record(cwd="", permissions="full"), directories=("/home/state/runs/d1/work",))
    found = narrowed(
        structs.replace(private, withheld=("/home/state",)),
        Request(permissions="full", cwd="/home/state/runs/d1/work"),
    )
    assert isinstance(found, Request)


@pytest.mark.parametrize("cwd", ["/w", "/w/state", "/w/state/runs/d2/work"])
@pytest.mark.parametrize("asked", ["read", "workspace"])
def test_what_is_withheld_is_so_where_it_lies_in_its_own_directory(cwd: str, asked: Any) -> None:
    authority = inside(record(permissions="workspace"), withheld=("/w/state",))
    found = narrowed(authority, Request(permissions=asked, cwd=cwd))
    assert "/w/state is withheld" in refusal(found)
    assert isinstance(narrowed(authority, Request(permissions=asked, cwd="/w/sub")), Request)


def test_variables_are_passed_on_with_the_values_that_it_was_given() -> None:
    authority = inside(record(), env={"A": "1", "B": "2"})
    assert isinstance(narrowed(authority, Request(env={"A": "1"})), Request)
    assert "C" in refusal(narrowed(authority, Request(env={"A": "1", "C": "3"})))
    assert "A" in refusal(narrowed(authority, Request(env={"A": "2"})))


def test_billed_calls_need_its_own_consent() -> None:
    assert "allow_metered" in refusal(narrowed(inside(record()), Request(allow_metered=True)))
    paid = inside(record(turn=Turn(allow_metered=True)))
    assert isinstance(narrowed(paid, Request(allow_metered=True)), Request)


def test_where_nothing_can_be_told_nothing_is_delegated() -> None:
    found = refusal(narrowed(nothing("it has exited already"), Request(permissions="read")))
    assert "it has exited already" in found


def test_a_process_of_several_attempts_has_what_all_of_them_have() -> None:
    one = inside(record("d1", permissions="full", cwd="/w"), env={"A": "1", "B": "2"})
    other = inside(record("d2", permissions="workspace", cwd="/w/sub"), env={"A": "1", "B": "3"})
    both = meet([one, other])
    assert (both.attempt, both.inside) == ("d1.1", ("d1", "d2"))
    assert (both.permissions, both.directories) == ("workspace", ("/w/sub",))
    assert both.env == {"A": "1"}
    assert not both.has_begun(record("d3", above=(DelegationId("d1"),)))
    assert meet([one, nothing("x")]).who == "none"


def test_it_sees_its_descendants_and_neither_itself_nor_others() -> None:
    authority = inside(record("d1"))
    assert authority.has_begun(record("d2", above=(DelegationId("d1"),)))
    assert authority.has_begun(record("d3", above=(DelegationId("d2"), DelegationId("d1"))))
    assert not authority.has_begun(record("d1"))
    assert not authority.has_begun(record("d4"))
    assert not nothing("x").has_begun(record("d4"))
    assert PERSON.has_begun(record("d4"))


PATHS = ("", "/w", "/w/a", "/w/a/b", "/v", "/v/a", "/secret", "/secret/x", "/")
REQUESTS = st.builds(
    Request,
    permissions=st.sampled_from((None, *LEVELS)),
    cwd=st.sampled_from(PATHS),
    env=st.dictionaries(st.sampled_from("AB"), st.sampled_from("12")),
    allow_metered=st.booleans(),
)
ROOTS = st.builds(
    lambda level, cwd, paid, replay, may: record(
        permissions=level, cwd=cwd, turn=Turn(allow_metered=paid), replay=replay, may=may
    ),
    st.sampled_from(LEVELS),
    st.sampled_from(("/w", "/w/a", "/v")),
    st.booleans(),
    st.sampled_from(("ask", "external-ok")),
    st.sampled_from(((), ("answer",), ("delegate:workspace",), ("delegate:full", "answer"))),
)


@given(ROOTS, st.lists(st.tuples(REQUESTS, st.sampled_from(("ask", "external-ok"))), max_size=6))
def test_no_descendant_exceeds_an_ancestor(root: Delegation, asked: list[tuple[Any, Any]]) -> None:
    line = [inside(root, env={"A": "1"}, withheld=("/secret",))]
    for number, (request, replay) in enumerate(asked):
        parent = line[-1]
        found = narrowed(parent, request)
        if isinstance(found, str):
            continue
        assert found.permissions is not None
        child = record(
            f"d{number + 2}",
            permissions=found.permissions,
            cwd=found.cwd,
            turn=Turn(allow_metered=found.allow_metered),
            replay=lower_replay(replay, parent.replay),
            may=tuple(parent.may),
        )
        line.append(inside(child, env=found.env, withheld=("/secret",)))
    for above, below in pairwise(line):
        for request, _ in asked:
            if isinstance(narrowed(below, request), Request):
                assert _reaches(above, request), (above, below, request)
        assert not (below.replay == "external-ok" and above.replay == "ask")
        assert below.may <= above.may


def _reaches(authority: Authority, request: Request) -> bool:
    return isinstance(narrowed(authority, request), Request)
