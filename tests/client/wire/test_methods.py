import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from msgspec import Raw

import fallbackd_client
from fallbackd_client.calls import BEGINS_WORK, READ_ONLY
from fallbackd_client.wire import methods
from fallbackd_client.wire.envelope import Method
from fallbackd_client.wire.methods import METHODS, NOUNS
from fallbackd_client.wire.methods.callers import ReportParams, ResolveParams
from fallbackd_client.wire.methods.delegations import DELEGATE, ChainEntry, DelegateParams
from fallbackd_client.wire.methods.events import Event
from fallbackd_client.wire.methods.health import HEALTH, Action, HealthParams, HealthResult


def test_every_module_of_methods_is_listed_once_and_sorted() -> None:
    names = [method.name for method in METHODS]
    assert names == sorted(set(names))
    folder = Path(methods.__file__).parent
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert {noun.__name__.rpartition(".")[2] for noun in NOUNS} == modules, "add it to NOUNS"


def test_the_client_repeats_exactly_the_methods_that_change_nothing() -> None:
    assert {method.name for method in METHODS if method.read_only} == READ_ONLY
    assert {method.name for method in METHODS if method.promises == "work"} == set(BEGINS_WORK)


def test_every_method_that_changes_something_says_what_it_promises() -> None:
    for is_read_only, promises in ((False, None), (True, "record")):
        with pytest.raises(TypeError, match="say what it promises"):
            Method(
                "x",
                params=DelegateParams,
                result=int,
                read_only=is_read_only,
                who="person",
                promises=promises,  # type: ignore[arg-type]
                summary="",
            )
    for method in METHODS:
        if method.promises != "nothing":
            assert "draining" in method.errors, f"{method.name} cannot say that it is not kept"


def test_every_type_has_a_schema() -> None:
    types = [one for method in METHODS for one in (method.params, method.result)]
    schemas, components = msgspec.json.schema_components(types)
    assert len(schemas) == 2 * len(METHODS)
    assert components


def test_every_method_takes_no_unknown_field_for_an_error() -> None:
    for method in METHODS:
        assert method.unknown_fields(Raw(b'{"of_a_later_version":1}')) == ("of_a_later_version",)


def test_decoding_all_types_leaves_the_interpreter_sound() -> None:
    # Some unions made msgspec free memory twice when the interpreter ended.
    script = (
        "import msgspec\n"
        "from fallbackd_client.wire.methods import METHODS\n"
        "for method in METHODS:\n"
        "    for kind in (method.params, method.result):\n"
        "        try: msgspec.json.decode(b'{}', type=kind)\n"
        "        except msgspec.ValidationError: pass\n"
    )
    root = str(Path(fallbackd_client.__file__).parents[1])
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (ran.returncode, ran.stderr) == (0, "")


def test_delegate_takes_the_names_of_older_callers() -> None:
    params = DELEGATE.decode_params(
        Raw(b'{"prompt":"x","platform":"codex","session_id":"s1"}')
    ).normalised()
    assert (params.backend, params.session) == ("codex", "s1")
    assert (params.platform, params.session_id) == (None, None)


def test_two_names_that_agree_are_one() -> None:
    params = DelegateParams(prompt="x", backend="codex", platform="codex").normalised()
    assert params.backend == "codex"


@pytest.mark.parametrize(
    "params",
    [
        DelegateParams(prompt="x", backend="codex", platform="gemini"),
        ResolveParams(session="a", session_id="b"),
        HealthParams(action="mark", target="codex", ttl_s=1, ttl_seconds=2),
        ReportParams(outcome="success", backend="a", platform="b"),
    ],
)
def test_two_names_that_disagree_are_refused(
    params: DelegateParams | ResolveParams | HealthParams | ReportParams,
) -> None:
    with pytest.raises(msgspec.ValidationError, match="mean the same"):
        params.normalised()


@pytest.mark.parametrize("name", ["ttl", "ttl_seconds", "ttl_s"])
def test_a_mark_takes_its_seconds_under_three_names(name: str) -> None:
    raw = Raw(b'{"action":"mark","platform":"codex","%s":0}' % name.encode())
    params = HEALTH.decode_params(raw).normalised()
    assert (params.target, params.ttl_s) == ("codex", 0)
    assert (params.ttl, params.ttl_seconds, params.platform) == (None, None, None)


@pytest.mark.parametrize("action", ["get", "mark", "pause", "resume"])
def test_an_action_on_one_backend_needs_its_target(action: Action) -> None:
    with pytest.raises(msgspec.ValidationError, match="target"):
        HealthParams(action=action).normalised()


def test_clear_needs_no_target() -> None:
    assert HealthParams(action="clear").normalised().target is None


def test_a_report_needs_a_backend() -> None:
    with pytest.raises(msgspec.ValidationError, match="backend"):
        ReportParams(outcome="success").normalised()


def test_a_chain_is_a_name_or_a_list_of_names_and_entries() -> None:
    named = DELEGATE.decode_params(Raw(b'{"prompt":"x","chain":"fast"}'))
    listed = DELEGATE.decode_params(
        Raw(b'{"prompt":"x","chain":["codex",{"backend":"gemini","tier":"api"}]}')
    )
    assert named.chain == "fast"
    assert listed.chain == ("codex", ChainEntry(backend="gemini", tier="api"))


@pytest.mark.parametrize(
    "field",
    [
        b'"prompt":""',
        b'"timeout_s":0',
        b'"settle_s":61',
        b'"wait":"never"',
        b'"session":"a\\u0000"',
        b'"env":{"A":1}',
    ],
)
def test_a_delegate_out_of_bounds_is_refused(field: bytes) -> None:
    text = b"{%s}" % field if b"prompt" in field else b'{"prompt":"x",%s}' % field
    with pytest.raises(msgspec.ValidationError):
        DELEGATE.decode_params(Raw(text))


def test_an_event_carries_only_what_its_kind_has() -> None:
    event = Event(at=1.0, kind="attempt.output", attempt="d1.1", offset=4)
    assert msgspec.to_builtins(event) == {
        "at": 1.0,
        "kind": "attempt.output",
        "attempt": "d1.1",
        "offset": 4,
    }


def test_health_answers_with_what_was_asked_for() -> None:
    assert msgspec.to_builtins(HealthResult(cleared=())) == {"cleared": ()}
    assert msgspec.to_builtins(HealthResult(health={})) == {"health": {}}
