"""The credential that the core chose, on its way to the call that carries it. Never its secret."""

from msgspec import structs

from fallbackd.backends.spec import Options
from fallbackd.core.exchange import (
    Call,
    CommandLine,
    CredentialRef,
    HttpRequest,
    NotStarted,
    ServedPrompt,
)
from fallbackd.core.failures import Failure, Reason, make_failure

SECRET_ERRORS = frozenset({"NO_SECRET", "OLD_SECRET"})


def credential_of(options: Options, label: str | None) -> CredentialRef | None:
    return next((one for one in options.credentials if one.label == label), None)


def carrying(call: Call, credential: CredentialRef | None, options: Options) -> Call:
    """
    The call with its credential, where the kind has not placed it itself.

    A program gets the chosen one in its variable, and none of the others that it would inherit.
    """
    if credential is None:
        return call
    match call:
        case HttpRequest():
            return call if call.credential else structs.replace(call, credential=credential)
        case CommandLine():
            return _with_variable(call, credential, options)
        case ServedPrompt():
            otherwise = call.otherwise and _with_variable(call.otherwise, credential, options)
            return structs.replace(
                call,
                # A server keeps what it was started with.
                key=f"{call.key} {credential.label}",
                server=_with_variable(call.server, credential, options),
                otherwise=otherwise,
            )


def _with_variable(call: CommandLine, credential: CredentialRef, options: Options) -> CommandLine:
    if call.credential is not None:
        return call
    others = {one.name for one in options.credentials if one.source == "env"}
    others |= {one.into for one in options.credentials if one.into is not None}
    return structs.replace(
        call, credential=credential, unset=(*call.unset, *sorted(others - {credential.into}))
    )


def without_secret(exit: NotStarted, *, now: float) -> Failure:
    """The credential's own trouble: another one may do, and so may another backend."""
    is_old = exit.error == "OLD_SECRET"
    return structs.replace(
        make_failure(
            Reason.AUTH if is_old else Reason.NOT_CONFIGURED,
            now=now,
            detail="expired" if is_old else "no_secret",
            confidence="structured",
            signature=f"fallbackd/{'old' if is_old else 'no'}_secret",
            evidence=exit.text,
            rotate=True,
        ),
        needs_human=True,
    )
