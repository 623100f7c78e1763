"""The configuration that is in force: taken from the file, taken again, or kept."""

import os
import stat
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Literal

import anyio
import anyio.to_thread
import structlog
from msgspec import structs

from fallbackd.api.host import Checked, ConfigState, ImportedText
from fallbackd.app.places import Places
from fallbackd.config.fallback_file import NEWER, OLDER, read_fallbacks, read_opencode_file
from fallbackd.config.fields import Problem
from fallbackd.config.files import WRITING_S, import_from, load_file, read_content
from fallbackd.config.import_hermes import FILE_NAME
from fallbackd.config.import_jkz import ALL, PREFIX, read_jkz
from fallbackd.config.importing import Imported, Report
from fallbackd.config.load import VOICE_FILE, Loaded, load
from fallbackd.config.show import as_dict
from fallbackd.config.voice import read_voice
from fallbackd.engine.environment import Settings
from fallbackd.engine.requests import Invalid
from fallbackd.lib import atomicfile
from fallbackd.lib.failpoints import hit
from fallbackd.ports.transport import Clock
from fallbackd.transports.opencode.server import PASSWORD_VARIABLES
from fallbackd.transports.process.runner.landlock import MIN_ABI, WHOLE_ABI, kernel_abi
from fallbackd_client.settings.files import Form


def import_text(
    config_path: str, *, path: str | None, env: Mapping[str, str] | None, write: bool
) -> ImportedText:
    """
    Args:
        config_path: The file that is in use here.
        path: Of the other program's file; None: `JKZ_*` variables.
        env: Those variables; None: the daemon's own.
        write: Put what was taken behind the file that is in use.

    Raises:
        Invalid: There is nothing that can be read, or the file in use cannot take it.
    """
    found = _read(path, env)
    text = found.toml()
    written = _write(config_path, text, path or ALL) if write and text else None
    return ImportedText(
        source=found.source,
        toml=text,
        taken=tuple((one.what, one.to) for one in found.taken),
        left=tuple((one.what, one.why) for one in found.left),
        written=written,
    )


def _read(path: str | None, env: Mapping[str, str] | None) -> Imported:
    if path is None:
        variables = os.environ if env is None else env
        return read_jkz({k: v for k, v in variables.items() if k.startswith(PREFIX)})
    if os.path.basename(path) in (NEWER, OLDER):
        content = read_content(path)
        if content.text is None:
            raise Invalid(f"{path}: {content.problem or 'is not there'}")
        home = os.path.realpath(os.path.expanduser("~"))
        return read_opencode_file(content.text, path=path, home=home)
    if os.path.basename(path) == VOICE_FILE:
        return read_voice_file(path)
    found = import_from(path, {})
    if found.problem is not None:
        raise Invalid(f"{path}: {found.problem.message}")
    if found.imported is None:
        raise Invalid(
            f"{path}: name a {FILE_NAME} of Hermes, a {NEWER} of opencode, a {VOICE_FILE}, or no"
            f" file for the {ALL} variables"
        )
    return found.imported


def read_voice_file(path: str) -> Imported:
    """The file stays where it is, and is watched; what it says now is the report."""
    content = read_content(path)
    if content.text is None:
        raise Invalid(f"{path}: {content.problem or 'does not exist'}")
    found = read_voice(content.text, path=path, now=time.time())
    report = Report()
    report.take(path, "import")
    for mark in found.marks:
        report.take(mark.backend, f"health.{mark.backend}")
    for problem in found.warnings:
        report.leave(problem.path, problem.message)
    return report.made("voice", {"import": [os.path.abspath(path)]})


def _write(config_path: str, text: str, source: str) -> str:
    place = os.path.realpath(config_path)
    content = read_content(place)
    if content.problem is not None:
        raise Invalid(f"{config_path} {content.problem}; correct it first")
    form = Form(content.text or "")
    before = "" if content.text is None else form.text.rstrip("\n") + "\n"
    added = f"# Imported from {source}.\n{text}"
    # Keys without a table have to stand before the first one.
    after = f"{before}\n{added}" if text.startswith("[") else f"{added}\n{before}"
    errors = load(after, path=config_path).errors
    if errors:
        raise Invalid(
            f"{config_path} has tables of the same names already ({errors[0].message}); "
            "show the lines with --dry-run and put them in by hand"
        )
    try:
        mode = stat.S_IMODE(os.stat(place).st_mode)
    except OSError:
        mode = 0o600
    try:
        os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
        atomicfile.write(place, form.whole(after), mode=mode)
    except OSError as error:
        raise Invalid(f"{config_path} cannot be written: {error.strerror or error}") from error
    return place


log = structlog.get_logger("config")

Take = Callable[[Settings], Awaitable[None]]
TellChange = Callable[[bool, dict[str, object]], Awaitable[None]]


def settings_of(loaded: Loaded, *, abi: int | None = None) -> Settings:
    """
    Args:
        abi: Of Landlock in the kernel; None: asked for.
    """
    abi = kernel_abi() if abi is None else abi
    confines: Literal["no", "partly", "yes"] = "no" if abi < MIN_ABI else "partly"
    policy = structs.replace(loaded.policy, kernel_confines=confines if abi < WHOLE_ABI else "yes")
    return Settings(
        policy=policy,
        options=loaded.options,
        asks_plans_of=frozenset(loaded.quota.ask),
        own_variables=_own_variables(loaded),
        rules_for=loaded.rules_for,
    )


def _own_variables(loaded: Loaded) -> frozenset[str]:
    """Variables that open the shared server and opencode servers of the person."""
    share = loaded.share
    named = [*PASSWORD_VARIABLES, *(one.password_env for one in loaded.opencode.servers)]
    named += [] if share is None else [share.url_env, share.group_secret_env]
    return frozenset(name for name in named if name is not None)


def refused_shells(loaded: Loaded, *, abi: int | None = None) -> tuple[Problem, ...]:
    """List the places where commands would run unasked and unconfined."""
    policy = settings_of(loaded, abi=abi).policy
    wanted = {f"backends.{id}": one.shell for id, one in policy.backends.items()}
    wanted |= {f"roles.{name}": one.shell for name, one in policy.roles.items()}
    wanted["defaults"] = policy.defaults.shell
    asked = [place for place, shell in wanted.items() if shell == "confined"]
    if policy.kernel_confines != "yes":
        why = "this kernel does not confine agents (Landlock, Linux 6.2)"
    elif policy.defaults.confine:
        why = "confine = false leaves this backend unconfined"
        off = {f"backends.{id}" for id, one in policy.backends.items() if one.confine is False}
        asked = [place for place in asked if place in off]
    else:
        why = "confine = false in [defaults] leaves agents unconfined"
        on = {f"backends.{id}" for id, one in policy.backends.items() if one.confine}
        asked = [place for place in asked if place not in on]
    return tuple(
        Problem(
            path=f"{place}.shell",
            message=f'"confined" is refused: {why}; commands ask as each agent is set up.',
        )
        for place in asked
    )


class Configuration:
    def __init__(self, places: Places, clock: Clock) -> None:
        """
        Read the file. One that cannot be used leaves the built-in configuration, loudly.

        That it is missing is said where the user has named it.
        """
        self.path = path = places.config
        self._is_named = places.config_is_named
        self._clock = clock
        self.loaded = self._read(path)
        self._on_disk = self.loaded
        self._loaded_at = clock.now()
        self._lock = anyio.Lock()
        self._shown: ConfigState | None = None
        _log_problems(self.loaded, path)

    @property
    def settings(self) -> Settings:
        return settings_of(self.loaded)

    @property
    def digest(self) -> str:
        return self._on_disk.digest

    def state(self) -> ConfigState:
        if self._shown is None:
            self._shown = ConfigState(
                path=self.path,
                loaded_at=self._loaded_at,
                config=as_dict(self.loaded),
                errors=self._on_disk.errors,
                warnings=(
                    *self.loaded.refused,
                    *refused_shells(self.loaded),
                    *self.loaded.warnings,
                ),
            )
        return self._shown

    def _read(self, path: str, *, was_filled: bool = False) -> Loaded:
        return load_file(path, os.environ, is_named=self._is_named, was_filled=was_filled)

    async def _read_again(self) -> Loaded:
        """The file as it is now. One without content is given the time to be written."""
        was_filled = bool(self.loaded.raw)
        read = partial(self._read, self.path, was_filled=was_filled)
        found = await anyio.to_thread.run_sync(read)
        if was_filled and not found.raw:
            await anyio.sleep(WRITING_S)
            found = await anyio.to_thread.run_sync(read)
        return found

    async def reload(self, take: Take, tell: TellChange) -> bool:
        """
        Read the file again; a bad one keeps what is in force.

        Args:
            take: Is given the settings of a good file.
            tell: Called with whether the file was good, and what to journal.

        Returns:
            Whether another configuration is in force now.
        """
        async with self._lock:
            found = await self._read_again()
            if found.digest == self._on_disk.digest:
                return False
            self._on_disk = found
            self._shown = None
            _log_problems(found, self.path)
            if found.errors:
                await tell(False, {"errors": _plain(found.errors)})
                return False
            self.loaded = found
            self._loaded_at = self._clock.now()
            self._shown = None
            await take(self.settings)
            hit("config.told.before")
            await tell(True, {"errors": [], "text": f"{self.path} is in effect"})
            return True

    async def check(self, *, path: str | None, text: str | None) -> Checked:
        where = path or self.path
        if os.path.basename(where) in (NEWER, OLDER):
            return await anyio.to_thread.run_sync(_check_fallbacks, where, text)
        if text is not None:
            found = load(text, path=where, environ=os.environ)
        elif path is not None and (await anyio.to_thread.run_sync(read_content, path)).is_missing:
            problem = Problem(path="", message=f"{path} does not exist; name a file that does")
            return Checked(path=where, errors=(problem,), warnings=())
        else:
            found = await anyio.to_thread.run_sync(self._read, where)
        errors = (*found.errors, *found.refused, *refused_shells(found))
        return Checked(path=where, errors=errors, warnings=found.warnings)


def _check_fallbacks(path: str, text: str | None) -> Checked:
    """A file of an opencode project, which is read where it lies."""
    if text is None:
        content = read_content(path)
        why = content.problem or "there is no such file"
        if content.text is None:
            return Checked(path=path, errors=(Problem(path=path, message=f"{why}."),))
        text = content.text
    found = read_fallbacks(text, path=path, home=os.path.expanduser("~"))
    problems = found.warnings
    return Checked(
        path=path,
        errors=() if found.is_valid else problems,
        warnings=problems if found.is_valid else (),
    )


def _plain(found: tuple[Problem, ...]) -> list[dict[str, str]]:
    return [{"path": one.path, "message": one.message} for one in found]


def _log_problems(found: Loaded, path: str) -> None:
    for one in found.errors:
        log.error("config.rejected", file=path, path=one.path, message=one.message)
    for one in (*found.refused, *found.warnings):
        log.warning("config.questioned", file=path, path=one.path, message=one.message)
