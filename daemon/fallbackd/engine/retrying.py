"""The parameters of a delegation, kept beside its prompt so that it can be asked for once more."""

import msgspec
from msgspec import structs

from fallbackd.core.records import Delegation
from fallbackd.engine.requests import Invalid, NewWork, Unknown, mode_of
from fallbackd.engine.runs import Runs

_NOT_KEPT = ("prompt", "env", "request_id", "parent", "inside", "client", "orphan_s")
"""The prompt has a file of its own; variables may be secrets; the rest belongs to one call."""


def kept(work: NewWork) -> bytes:
    """Without the values of variables, which are not written to disk."""
    fields = {**structs.asdict(work), "mode": mode_of(work)}
    return msgspec.json.encode({name: fields[name] for name in fields if name not in _NOT_KEPT})


def request_of(runs: Runs, one: Delegation) -> NewWork:
    """
    Raises:
        Unknown: Its prompt or its parameters are not on record any more.
        Invalid: It has not ended, or was given variables.
    """
    name = one.delegation
    if not one.is_ended:
        raise Invalid(
            f"{name} has not ended; wait for it, or stop it: fallbackd-client cancel {name}"
        )
    prompt = runs.read_prompt(name)
    if prompt is None:
        raise Unknown(f"the prompt of {name} is not on record any more; delegate it again")
    return structs.replace(_asked(runs, one, prompt), inside=one.above)


def reply_to(runs: Runs, one: Delegation, prompt: str) -> NewWork:
    """
    Where the session is by now is where it continues: no backend is asked for by name.

    Raises:
        Unknown: Its parameters are not on record any more.
        Invalid: It was given variables.
    """
    asked = _asked(runs, one, prompt)
    stays = one.served_by in (None, one.requested)
    return structs.replace(
        asked,
        session=one.session,
        backend=None,
        model=asked.model if stays else None,
        fresh=False,
        metadata={},
    )


def _asked(runs: Runs, one: Delegation, prompt: str) -> NewWork:
    """What was asked, with this prompt."""
    name = one.delegation
    if one.env_names:
        raise Invalid(
            f"{name} was given {', '.join(one.env_names)}, whose values are not kept; delegate the"
            " prompt again with --env"
        )
    request = runs.read_request(name)
    if request is None:
        raise Unknown(f"the parameters of {name} are not on record any more; delegate it again")
    try:
        fields = msgspec.json.decode(request, type=dict[str, msgspec.Raw])
        whole = {**fields, "prompt": msgspec.Raw(msgspec.json.encode(prompt))}
        return msgspec.json.decode(msgspec.json.encode(whole), type=NewWork)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise Unknown(f"the parameters of {name} cannot be read: {error}") from error
