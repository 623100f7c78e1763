"""
Changes to a request that a provider refuses for a known cause.

    the words of the refusal ──▶ a row of `_ROWS` ──▶ repairs ──▶ the same request, changed there

A provider that knows a parameter by another name, takes no `temperature`, or finds reasoning in the
conversation that another provider has signed, says so, and would answer without it. What stands
here is asked for once more of the same backend; every byte beside the change stays as it was.
Nothing is ever left out that says what is wanted: messages, tools, formats of an answer.

The user may know it beforehand: `omit`, `rename` and `default` of a backend are the same changes.

A request whose form was refused is changed and sent to the same backend once more where the words
of the refusal are known here; `engine/repairing` remembers what has helped, for the gateway and for
delegations. A repair splices the body (`lib/splicing`) and never writes it anew. Reasoning is
remembered by its signature: what an account has signed itself stays, also behind a turn of another
provider.
"""

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from itertools import islice
from typing import Any, Literal

import msgspec
from msgspec import Struct, structs

from fallbackd.backends.lines import words
from fallbackd.backends.passage import WRITES
from fallbackd.backends.spec import ApiMode, Options
from fallbackd.core.protocol import Evidence
from fallbackd.lib import foreign_json
from fallbackd.lib.splicing import (
    EVERY,
    added,
    changed,
    is_list,
    is_object,
    items,
    members,
    renamed,
)

BETA = "anthropic-beta"
_STATUSES = frozenset({400, 404, 422})
"""Statuses of a refusal of the request itself."""

Act = Literal["omit", "rename", "default", "lower", "role", "beta", "unsign", "sign"]


class Repair(Struct, frozen=True, kw_only=True):
    """
    One change of a request.

    Attributes:
        name: The field, the role, or the value of the header that is refused.
        to: What stands in its place; of `omit`, the place of a field that is not at the top; of
            `default`, the value as JSON.
        about: What later requests it is right for: all to this model, those of the conversation, or
            what the configuration says.
    """

    act: Act
    name: str = ""
    to: str = ""
    about: Literal["model", "conversation", "configuration"] = "model"

    @property
    def subject(self) -> tuple[str, ...]:
        """Subject of a repair; of several with the same one the last counts."""
        pair = (self.name, self.to) if self.act in ("rename", "role") else (self.name,)
        return (self.act, *sorted(pair))

    @property
    def reverse(self) -> "Repair":
        """The repair that restores what this one has replaced; itself, where none does."""
        if self.act not in ("rename", "role"):
            return self
        return structs.replace(self, name=self.to, to=self.name)

    def __str__(self) -> str:
        match self.act:
            case "rename" | "lower" | "role":
                return f"{self.name} as {self.to}"
            case "default":
                return f"{self.name} by default"
            case "unsign":
                return "no foreign reasoning"
            case "sign":
                return "placeholders of signatures"
            case _:
                return f"no {self.name}"


def words_of(repairs: Iterable[Repair]) -> str:
    """Describe the changes for people, each once."""
    return ", ".join(dict.fromkeys(map(str, repairs)))


class Sendable(Struct, frozen=True, kw_only=True):
    """The part of a request that can be repaired."""

    mode: ApiMode
    body: bytes
    headers: Mapping[str, str] = {}
    side: str = ""
    """See `passage.Passage`."""
    foreign: frozenset[bytes] = frozenset()
    """Digests of the reasoning that was taken out."""


# Applying.

_LISTS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "messages": (("messages", EVERY), ("messages", EVERY, "content", EVERY)),
    "system": (("system", EVERY),),
    "tools": (("tools", EVERY), ("tools", EVERY, "function")),
    "input": (("input", EVERY), ("input", EVERY, "content", EVERY)),
}
"""Places of fields in lists of objects that may be left out."""


_NOT_READ = (ValueError, msgspec.DecodeError, RecursionError)
"""The body is not what a repair expects: it is left as it is."""


def applied(repairs: Iterable[Repair], request: Sendable) -> tuple[Sendable, tuple[Repair, ...]]:
    """The request with those repairs that change anything of it, and which these are."""
    done: list[Repair] = []
    for repair in repairs:
        try:
            made = _ACTS[repair.act](repair, request)
        except _NOT_READ:
            continue
        if made != request:
            request = made
            done.append(repair)
    return request, tuple(done)


def configured(options: Options) -> tuple[Repair, ...]:
    """The changes that the user wants of each request to a backend."""
    as_said = partial(Repair, about="configuration")
    return (
        *(as_said(act="rename", name=old, to=new) for old, new in options.rename.items()),
        *(as_said(act="omit", name=name) for name in options.omit),
        *(
            as_said(act="default", name=name, to=msgspec.json.encode(value).decode())
            for name, value in options.default.items()
        ),
    )


def without_known(request: Sendable, known: Container[bytes]) -> Sendable:
    """The request without the reasoning that its backend is known not to have signed."""
    try:
        return _unsigned(request, lambda digest: digest in known)
    except _NOT_READ:
        return request


def _omitted(repair: Repair, request: Sendable) -> Sendable:
    body = request.body
    if not repair.to:
        return structs.replace(request, body=changed(body, repair.name.split("."), _nothing))
    for place in _LISTS.values() if repair.to == EVERY else (_LISTS[repair.to],):
        for path in place:
            body = changed(body, (*path, repair.name), _nothing)
    return structs.replace(request, body=body)


def _nothing(_: bytes) -> None:
    return None


def _inside(body: bytes, name: str, change: Callable[[bytes, str], bytes]) -> bytes:
    """Change the object that a field with this dotted name is, or may be, in."""
    *outer, leaf = name.split(".")
    if not outer:
        return change(body, leaf)
    return changed(body, outer, lambda one: change(one, leaf) if is_object(one) else one)


def _renamed(repair: Repair, request: Sendable) -> Sendable:
    def to_other(data: bytes, name: str) -> bytes:
        return renamed(data, name, repair.to)

    return structs.replace(request, body=_inside(request.body, repair.name, to_other))


def _defaulted(repair: Repair, request: Sendable) -> Sendable:
    def put(data: bytes, name: str) -> bytes:
        return data if name in members(data) else added(data, name, repair.to.encode())

    is_written = request.side in WRITES
    body = _inside(request.body, repair.name, put) if is_written else request.body
    return structs.replace(request, body=body)


def _lowered(repair: Repair, request: Sendable) -> Sendable:
    def lower(value: bytes) -> bytes:
        return repair.to.encode() if value.isdigit() and int(value) > int(repair.to) else value

    return structs.replace(request, body=changed(request.body, repair.name.split("."), lower))


def _with_role(repair: Repair, request: Sendable) -> Sendable:
    def other(value: bytes) -> bytes:
        is_it = foreign_json.decode(value) == repair.name
        return msgspec.json.encode(repair.to) if is_it else value

    name = "input" if request.mode == "responses" else "messages"
    return structs.replace(request, body=changed(request.body, (name, EVERY, "role"), other))


def _without_beta(repair: Repair, request: Sendable) -> Sendable:
    said = [one.strip() for one in request.headers.get(BETA, "").split(",") if one.strip()]
    kept = [one for one in said if repair.name not in (one, BETA)]
    if kept == said:
        return request
    headers = {name: text for name, text in request.headers.items() if name != BETA}
    if kept:
        headers[BETA] = ",".join(kept)
    return structs.replace(request, headers=headers)


def _without_all_signed(_: Repair, request: Sendable) -> Sendable:
    return _unsigned(request, lambda digest: True)


_GOOGLE_SIGNATURES = ("thoughtSignature", "thought_signature")
_PLACEHOLDER = b'"skip_thought_signature_validator"'
"""Documented by Google for calls of tools that another model has made."""


def _with_placeholders(_: Repair, request: Sendable) -> Sendable:
    def signed(part: bytes) -> bytes:
        names = members(part) if is_object(part) else {}
        is_call = "functionCall" in names or "function_call" in names
        if not is_call or any(one in names for one in _GOOGLE_SIGNATURES):
            return part
        return added(part, _GOOGLE_SIGNATURES[0], _PLACEHOLDER)

    body = changed(request.body, ("contents", EVERY, "parts", EVERY), signed)
    return structs.replace(request, body=body)


_ACTS: Mapping[Act, Callable[[Repair, Sendable], Sendable]] = {
    "omit": _omitted,
    "rename": _renamed,
    "default": _defaulted,
    "lower": _lowered,
    "role": _with_role,
    "beta": _without_beta,
    "unsign": _without_all_signed,
    "sign": _with_placeholders,
}


# Reasoning that another provider signed.

_THOUGHTS = {"thinking": "signature", "redacted_thinking": "data"}
"""Blocks of Anthropic's messages, and the field in which their provider knows them again."""


def _digest(signature: bytes) -> bytes:
    return blake2b(signature, digest_size=16).digest()


def _unsigned(request: Sendable, is_foreign: Callable[[bytes], bool]) -> Sendable:
    found: set[bytes] = set()

    def goes(signature: bytes) -> bool:
        digest = _digest(signature)
        if is_foreign(digest):
            found.add(digest)
            return True
        return False

    body = _UNSIGNED[request.mode](request.body, goes)
    if not found:
        return request
    return structs.replace(request, body=body, foreign=request.foreign | found)


def _of(data: bytes, name: str) -> bytes:
    """The value of a field of an object; empty: it has none."""
    one = members(data).get(name) if is_object(data) else None
    return b"" if one is None else data[one.value : one.end]


def _word(data: bytes, name: str) -> str:
    value = _of(data, name)
    return str(foreign_json.decode(value)) if value[:1] == b'"' else ""


Goes = Callable[[bytes], bool]
"""Predicate: the reasoning with this signature is taken out."""


def _of_messages(body: bytes, goes: Goes) -> bytes:
    def block(data: bytes) -> bytes | None:
        field = _THOUGHTS.get(_word(data, "type"))
        return None if field is not None and goes(_of(data, field)) else data

    def message(data: bytes) -> bytes | None:
        made = changed(data, ("content", EVERY), block)
        content = _of(made, "content")
        # A turn that was nothing but thoughts: the API refuses one without content.
        is_left = made == data or not is_list(content) or bool(items(content))
        return made if is_left else None

    return changed(body, ("messages", EVERY), message)


def _of_responses(body: bytes, goes: Goes) -> bytes:
    def item(data: bytes) -> bytes | None:
        if _word(data, "type") != "reasoning":
            return data
        signed = _of(data, "encrypted_content")
        return None if goes(signed if signed not in (b"", b"null") else _of(data, "id")) else data

    return changed(body, ("input", EVERY), item)


def _of_contents(body: bytes, goes: Goes) -> bytes:
    def signature(value: bytes) -> bytes | None:
        return None if value != _PLACEHOLDER and goes(value) else value

    for name in _GOOGLE_SIGNATURES:
        body = changed(body, ("contents", EVERY, "parts", EVERY, name), signature)
    return body


def _of_chat(body: bytes, goes: Goes) -> bytes:
    """Reasoning as OpenRouter and Google's own endpoint for chat completions have it."""

    def signed(value: bytes) -> bytes | None:
        return None if goes(value) else value

    for path in (
        ("messages", EVERY, "reasoning_details"),
        ("messages", EVERY, "extra_content"),
        ("messages", EVERY, "tool_calls", EVERY, "extra_content"),
    ):
        body = changed(body, path, signed)
    return body


_UNSIGNED: Mapping[str, Callable[[bytes, Goes], bytes]] = {
    "messages": _of_messages,
    "responses": _of_responses,
    "generate_content": _of_contents,
    "chat_completions": _of_chat,
}


# Recognising.

_RENAMES = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
_OPTIONAL = frozenset(
    {
        *("temperature", "top_p", "top_k", "min_p", "seed", "logit_bias", "logprobs"),
        *("top_logprobs", "presence_penalty", "frequency_penalty", "repetition_penalty"),
        *("parallel_tool_calls", "stream_options", "store", "metadata", "user", "service_tier"),
        *("safety_identifier", "prompt_cache_key", "prompt_cache_retention", "client_metadata"),
        *("reasoning_effort", "reasoning", "verbosity", "thinking", "enable_thinking", "include"),
        *("context_management", "output_config", "cache_control", "betas", "speed", "truncation"),
        *("chat_template_kwargs", "provider", "transforms", "usage", "prediction"),
    }
)
"""Settings of a request: without them it asks for the same."""
_WITHIN = frozenset(
    {
        *("cache_control", "defer_loading", "strict", "caller", "allowed_callers"),
        *("input_examples", "eager_input_streaming", "reasoning_content", "reasoning"),
        *("reasoning_details", "annotations", "refusal", "phase", "status", "citations"),
        *("is_error", "extra_content", "audio", "namespace"),
    }
)
"""Optional fields of one message or tool."""
_CONFIG = ("generationConfig", "generation_config")
_OPTIONAL_CONFIG = frozenset(
    {
        *("temperature", "topP", "topK", "seed", "presencePenalty", "frequencyPenalty"),
        *("thinkingConfig", "responseLogprobs", "logprobs", "mediaResolution"),
    }
)
"""Optional fields of Google's `generationConfig`."""

_NAME = r"[A-Za-z_][\w.\[\]-]{0,100}+"
_PATH = rf"(?<![\w.\[\]-])[`'\"]?({_NAME})[`'\"]?"
"""Possessive: what a provider says must not take long to read."""
_REFUSED = tuple(
    re.compile(pattern, re.I)
    for pattern in (
        rf"\bunsupported (?:parameter|value|field|argument)s?:? {_PATH}",
        rf"\b(?:unknown|unrecognized|unexpected) (?:request )?(?:parameter|argument|field|key|name)"
        rf"s?(?: supplied)?:? {_PATH}",
        rf"{_PATH}: extra (?:inputs|fields) (?:are )?not permitted",
        rf"extra (?:inputs|fields) (?:are )?not permitted,? \(?field: {_PATH}",
        rf"\bproperty {_PATH} is unsupported",
        rf"(?<![\w`'\"])[`'\"]({_NAME})[`'\"] (?:is|are) (?:not supported|unsupported"
        r"|deprecated|not allowed|not permitted|not available|only allowed|only supported)",
        r"\b(temperature|top_p|top_k|parallel_tool_calls|reasoning_effort|max_tokens"
        r"|max_completion_tokens) is (?:not supported|unsupported|deprecated|not allowed)",
        rf"\bdoes not support (?:the )?(?:parameter|argument|field)s? {_PATH}",
        rf"\bargument not supported(?: on this model)?: {_PATH}",
        r"[`'\"]?\b(temperature|top_p|top_k)\b[`'\"]? (?:may only be|must be (?:unset|1\b|set to"
        r"|greater than or equal to 0\.95))",
        r"\binvalid (temperature|top_p): only",
        r"[`'\"]\w+[`'\"] and [`'\"](\w+)[`'\"] cannot both be specified",
        r"\b(context_management)\b.{0,80}\brequires? .{0,30}\bthinking\b",
        r"\bunknown name \"([\w.]+)\"",
    )
)
_AT = re.compile(r"\bunknown name \"[\w.]+\" at '([\w.\[\]]+)'", re.I)
_FOREIGN = re.compile(
    r"invalid [`'\"]?signature[`'\"]? in [`'\"]?thinking"
    r"|invalid [`'\"]?data[`'\"]? in [`'\"]?redacted_thinking"
    r"|\bthinking\b.{0,60}\bblocks? .{0,120}cannot be modified"
    r"|thinking\.signature: "
    r"|encrypted[ _]content.{0,200}could not be (?:verified|decrypted|parsed)"
    r"|\binvalid_encrypted_content\b"
    r"|\bitem (?:with id )?['\"`]rs_\w+['\"`] not found"
    r"|(?:invalid|corrupted|corrupt) thought.?signature"
    r"|thought.?signature is (?:not valid|invalid)",
    re.I | re.S,
)
_UNSIGNED_CALL = re.compile(r"missing a [`'\"]?thought.?signature", re.I)
_NO_THOUGHT = re.compile(r"expected [`'\"]thinking[`'\"].{0,60}but found", re.I)
_NO_ITEM = re.compile(r"\bwithout its required\b.{0,60}\bitem\b", re.I)
_TOO_MANY = re.compile(
    r"(max_\w*tokens|maxOutputTokens)\b.{0,40}?\b\d+ ?> ?(\d+), which is the maximum"
    r"|(max_\w*tokens) is too large: \d+\. .{0,60}?at most (\d+)"
    r"|valid range of (max_\w*tokens) is \[\d+, ?(\d+)\]"
    r"|[`'\"](max_\w*tokens)[`'\"] must be less than or equal to [`'\"]?(\d+)",
    re.I,
)
_BAD_BETA = re.compile(r"unexpected value\(s\) (.{1,400}?) for the [`'\"]?anthropic-beta", re.I)
_BAD_BETAS = re.compile(r"invalid beta flag", re.I)
_QUOTED = re.compile(r"[`'\"]([\w.-]+)[`'\"]")
_BAD_ROLE = re.compile(
    r"(?:unknown variant|invalid value|unsupported value|unexpected role|does not support"
    r"|not (?:one of|supported)|invalid role|discriminator property).{0,120}?"
    r"[`'\"](developer|system|role)[`'\"]"
    r"|[`'\"](developer|system)[`'\"].{0,60}?(?:is not (?:one of|a valid|supported))",
    re.I,
)
_ABOUT_ROLE = re.compile(r"\brole\b|\bvariant\b", re.I)


def _fields(said: str, mode: ApiMode) -> Iterator[Repair]:
    """The fields that a provider does not take."""
    place = _AT.search(said)
    inside = "" if place is None else place[1]
    for pattern in _REFUSED:
        for match in pattern.finditer(said):
            yield from _of_field(f"{inside}.{match[1]}" if inside else match[1], mode)


def _of_field(path: str, mode: ApiMode) -> Iterator[Repair]:
    parts = [one for one in re.split(r"[.\[\]]+", path) if one and not one.isdigit()]
    parts = parts[1:] if parts[:1] == ["body"] else parts
    if parts and mode == "generate_content":
        yield from _of_setting(parts[-1])
    elif parts:
        yield from _of_parts(parts, mode)


def _of_setting(name: str) -> Iterator[Repair]:
    leaf = _camel(name)
    if leaf in _OPTIONAL_CONFIG:
        for one in (leaf, name):
            yield from (Repair(act="omit", name=f"{place}.{one}") for place in _CONFIG)


def _of_parts(parts: list[str], mode: ApiMode) -> Iterator[Repair]:
    top, leaf = _snake(parts[0]), parts[-1]
    if top in _RENAMES and mode == "chat_completions":
        yield Repair(act="rename", name=top, to=_RENAMES[top])
    elif top in _LISTS or (len(parts) == 1 and top not in _OPTIONAL):
        if leaf in _WITHIN:
            yield Repair(act="omit", name=leaf, to=top if top in _LISTS else EVERY)
    elif top in _OPTIONAL:
        yield Repair(act="omit", name=".".join([top, *parts[1:]]))
        if len(parts) == 1 and leaf in _WITHIN:
            yield Repair(act="omit", name=leaf, to=EVERY)


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])([A-Z])", lambda found: "_" + found[1].lower(), name)


def _camel(name: str) -> str:
    return re.sub(r"_([a-z])", lambda found: found[1].upper(), name)


def _foreign(said: str, mode: ApiMode) -> Iterator[Repair]:
    """Reasoning that another provider, or another account, has signed."""
    if _FOREIGN.search(said):
        yield Repair(act="unsign", about="conversation")
    if _UNSIGNED_CALL.search(said):
        yield Repair(act="sign", about="conversation")
    if _NO_THOUGHT.search(said):
        yield Repair(act="omit", name="thinking", about="conversation")
    if _NO_ITEM.search(said) and mode == "responses":
        yield Repair(act="omit", name="id", to="input", about="conversation")


def _limits(said: str, mode: ApiMode) -> Iterator[Repair]:
    """More tokens of an answer than the model can write."""
    for match in _TOO_MANY.finditer(said):
        name, most = (one for one in match.groups() if one is not None)
        yield Repair(act="lower", name=name, to=most)
        if mode == "chat_completions" and name in _RENAMES:
            yield Repair(act="lower", name=_RENAMES[name], to=most)


def _betas(said: str, mode: ApiMode) -> Iterator[Repair]:
    found = _BAD_BETA.search(said)
    if found is not None:
        yield from (Repair(act="beta", name=one) for one in _QUOTED.findall(found[1]))
    elif _BAD_BETAS.search(said):
        yield Repair(act="beta", name=BETA)


def _roles(said: str, mode: ApiMode) -> Iterator[Repair]:
    found = _BAD_ROLE.search(said) if _ABOUT_ROLE.search(said) else None
    if found is None:
        return
    named = (found[1] or found[2]).lower()
    if named != "system":
        yield Repair(act="role", name="developer", to="system")
    elif mode == "messages":
        yield Repair(act="role", name="system", to="user")
    else:
        yield Repair(act="role", name="system", to="developer")


_ROWS: Sequence[Callable[[str, ApiMode], Iterator[Repair]]] = (
    _foreign,
    _limits,
    _betas,
    _roles,
    _fields,
)
"""Each reads the words of a refusal. The first that has a repair which changes anything counts."""


def proposed(
    evidence: Evidence, request: Sendable, *, without: frozenset[Repair] = frozenset()
) -> tuple[Sendable, tuple[Repair, ...]]:
    """
    A refused request as it may be answered, and what was changed; nothing: no repair is known.

    Args:
        without: Repairs that were tried already. None of them is made again or reversed.
    """
    if evidence.answered or not _is_refusal(evidence):
        return request, ()
    said = "\n".join(islice(_said(evidence), _MOST_SAID))[: 4 * _MOST_CHARS]
    for row in _ROWS:
        found = dict.fromkeys(row(said, request.mode))
        made, done = applied((one for one in found if not {one, one.reverse} & without), request)
        if made != request:
            return made, done
    return request, ()


def is_signed_elsewhere(evidence: Evidence) -> bool:
    """Check whether a conversation is refused for reasoning that another account has signed."""
    return any(_FOREIGN.search(one) for one in islice(_said(evidence), _MOST_SAID))


def _is_refusal(evidence: Evidence) -> bool:
    """
    Tell a refusal by its status; an error inside of an answer with status 200 by being stated.
    """
    status = evidence.http_status
    if status is None or status < 300:
        return evidence.body is not None
    return status in _STATUSES


_MOST_SAID = 30
_MOST_CHARS = 4000
_MOST_DEPTH = 8
_CODES = frozenset({"unsupported_parameter", "unknown_parameter", "unsupported_value"})


def _said(evidence: Evidence) -> Iterator[str]:
    """Every text of an error, however its provider and those in between have wrapped it."""
    if evidence.text:
        yield evidence.text[:_MOST_CHARS]
    if len(evidence.text) > _MOST_CHARS:
        yield evidence.text[-_MOST_CHARS:]
    yield from _texts(evidence.body, _MOST_DEPTH)


def _texts(value: Any, depth: int) -> Iterator[str]:  # any JSON value: it comes from the wire
    if depth == 0:
        return
    match value:
        case str():
            inner = _inner(value)
            if inner is None:
                yield value[:_MOST_CHARS]
            else:
                yield from _texts(inner, depth - 1)
        case list():
            for one in value[:20]:
                yield from _texts(one, depth - 1)
        case dict():
            if words(value.get("code")) in _CODES and isinstance(value.get("param"), str):
                yield f"unsupported parameter: '{value['param']}'"
            place, said = value.get("loc"), value.get("msg")
            if isinstance(place, list) and isinstance(said, str):
                yield f"{'.'.join(map(str, place[:8]))}: {said[:_MOST_CHARS]}"
            for one in islice(value.values(), 40):
                yield from _texts(one, depth - 1)


def _inner(text: str) -> Any:
    """The JSON that a text holds from some place on; None: it holds none."""
    at = text.find("{")
    if at < 0 or len(text) > 16 * _MOST_CHARS:
        return None
    try:
        return foreign_json.decode(text[at:])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
