"""
What follows from the configuration alone, computed once for each.

It is kept on the `Policy` and goes with it: a policy never changes, a new one begins with nothing.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, TypeVarTuple, Unpack

from fallbackd.core.policy import Policy

MOST = 4096
"""Values of one policy: callers name models and roles as they like."""

_Args = TypeVarTuple("_Args")
_Found = TypeVar("_Found")


def once(
    compute: Callable[[Policy, Unpack[_Args]], _Found],
) -> Callable[[Policy, Unpack[_Args]], _Found]:
    """`compute` reads nothing but its arguments, which can be hashed."""

    @wraps(compute)
    def found(policy: Policy, *args: *_Args) -> _Found:
        known: dict[Any, Any] = policy.computed
        key = (compute, args)
        try:
            value: _Found = known[key]
        except KeyError:
            if len(known) >= MOST:
                known.clear()
            value = known[key] = compute(policy, *args)
        return value

    return found
