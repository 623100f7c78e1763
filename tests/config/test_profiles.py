"""The profiles agree with the kinds that they are of, and with each other."""

from fallbackd.backends import ALIASES, KIND_NAMES, KINDS
from fallbackd.backends.signatures import LATER
from fallbackd.config import profiles
from fallbackd.core.policy import IN_SESSION_KIND


def test_the_kinds_that_a_file_may_name_are_those_that_exist() -> None:
    # Nothing is started in the session, so there is nothing to know about how.
    assert set(KIND_NAMES) == {*KINDS, IN_SESSION_KIND}
    assert set(ALIASES.values()) <= set(KINDS)
    assert not LATER.keys() & KINDS.keys()


def test_every_profile_is_of_a_kind_that_exists_and_has_options() -> None:
    assert {backend.kind for backend in profiles.BACKENDS.values()} <= set(KIND_NAMES)
    assert profiles.OPTIONS.keys() == profiles.BACKENDS.keys()


def test_a_kind_whose_output_shows_no_sign_of_life_is_plain() -> None:
    silent = {name for name, kind in KINDS.items() if not kind.structured}
    assert silent == {"generic-cli"}
    plain = {backend.id for backend in profiles.BACKENDS.values() if backend.plain_output}
    assert plain == {profiles.NUMASEC, profiles.AGY}


def test_what_a_kind_says_of_itself_stands_in_the_profile() -> None:
    https = {backend.id for backend in profiles.BACKENDS.values() if backend.is_http}
    assert https == {profiles.HERMES}
    reading = {backend.kind for backend in profiles.BACKENDS.values() if backend.keeps_to_reading}
    assert reading == {"claude", "codex", "gemini", "numasec", "opencode"}


def test_chains_name_only_profiles_and_none_falls_back_to_numasec_or_to_itself() -> None:
    for name, chain in profiles.chains(profiles.BACKENDS).items():
        ids = [entry.backend for entry in chain]
        assert set(ids) <= profiles.BACKENDS.keys() - {name}
        assert len(ids) == len(set(ids)) >= 3
        assert name == profiles.ANY or profiles.NUMASEC not in ids
        if name not in (profiles.ANY, profiles.GEMINI, profiles.NUMASEC):
            assert ids[-1] == profiles.GEMINI
