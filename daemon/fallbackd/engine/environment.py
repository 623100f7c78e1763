"""Dependencies of the engine, handed in by the app: values and small callables."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec
import structlog
from msgspec import Struct, field, structs

from fallbackd.backends.spec import BackendKind, Options
from fallbackd.classify.rules import Rule
from fallbackd.core.ids import AttemptId, BackendId, DelegationId
from fallbackd.core.policy import Policy
from fallbackd.core.protocol import (
    Call,
    Chunk,
    Confinement,
    CredentialRef,
    HttpRequest,
    Inquiry,
    NoAnswer,
)
from fallbackd.lib.secretvalues import SecretValues
from fallbackd.ports.transport import (
    Fetched,
    Probe,
    Resting,
    Running,
    Secrets,
    SecretSeen,
    Transport,
    Unsent,
)
from fallbackd_conversations.redact import redact

if TYPE_CHECKING:
    from fallbackd.classify.model import Model


log = structlog.get_logger("lessons")


class Taught:
    """The model with what was learned here, if anything was."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.is_damaged = False
        """True where the shipped weights are damaged, so that the rules alone decide."""
        self._model: Model | None = None
        self._is_read = False

    def model(self) -> "Model | None":
        if not self._is_read:
            self._is_read = True
            self._model = None if self.path is None else _read(self.path)
        return self._model

    def take(self, model: "Model | None") -> None:
        self._model, self._is_read = model, True


def _read(path: Path) -> "Model | None":
    from fallbackd.classify.model import Additions, Model, usable, weights  # see `get_ready`

    if usable() is None:
        return None
    content = weights()
    try:
        added = msgspec.json.decode(path.read_bytes(), type=Additions, strict=False)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        log.warning("lessons.unreadable", path=str(path), error=str(error))
        return None
    if added.base != Additions.to(content).base:
        log.warning("lessons.outdated", path=str(path), fix="fallbackd-client classify train")
        return None
    return Model(content, added)


class Fingerprinter(Protocol):
    def __call__(self, directory: str) -> Mapping[str, tuple[int, int]] | None:
        """(mtime ns, size) of each file; None where there are too many to look at."""
        ...


class LogReader(Protocol):
    def __call__(self, directory: str, *, offset: int, max_bytes: int) -> tuple[bytes, int, int]:
        """(bytes from `offset`, the next offset, the size)."""
        ...


class ChunkReader(Protocol):
    def __call__(self, directory: str, *, offset: int) -> Iterator[tuple[Chunk, int]]:
        """Read what is recorded from `offset` on, each piece with the offset after it."""
        ...


def no_chunks(directory: str, *, offset: int) -> Iterator[tuple[Chunk, int]]:
    """Default for a daemon that records nothing."""
    return iter(())


class Attach(Protocol):
    async def __call__(self, *, attempt: str, directory: str) -> Running | Unsent | None:
        """
        Re-attach to what an earlier daemon began in the directory of an attempt.

        None: nothing was started there, and nothing will be.
        """
        ...


class EndLeftover(Protocol):
    async def __call__(self, directory: str, *, attempt: str) -> bool:
        """End what runs for an attempt without a record. Returns whether it is proven gone."""
        ...


async def nobody_is_left(directory: str, *, attempt: str) -> bool:
    """Default for a daemon that no attempt outlives."""
    return True


async def nothing_stays(call: Call) -> bool:
    """Default for a daemon whose programs take one prompt each."""
    return False


async def nothing_obeys(call: Call, cwd: str) -> None:
    """Default for the same."""


async def nothing_is_left(*, attempt: str, directory: str) -> Running | Unsent | None:
    """Default for a daemon that no attempt outlives."""
    return None


class NoLook:
    """The default: credentials are not checked before use."""

    async def read(self, ref: CredentialRef) -> str:
        raise NotImplementedError("secrets are read by the transports")

    async def identity(self, ref: CredentialRef) -> str:
        raise NotImplementedError("secrets are read by the transports")

    async def look(self, ref: CredentialRef, *, fresh: bool = False) -> SecretSeen:
        return SecretSeen()


class NoProbe:
    """The default: backends are not probed without work for them."""

    async def version(self, program: str) -> str | None:
        return None

    def known_version(self, program: str) -> str | None:
        return None

    async def ask(self, program: str, inquiry: Inquiry, environ: Mapping[str, str]) -> None:
        return None

    async def fetch(self, request: HttpRequest) -> Fetched:
        return Fetched(exit=NoAnswer(exception="NoProbe", text="probes are off", gone=True))


class Transports(Struct, frozen=True, kw_only=True):
    command: Transport
    http: Transport
    served: Transport


class World(Struct, frozen=True, kw_only=True):
    transports: Transports
    kinds: Mapping[str, BackendKind]
    signatures: Mapping[str, tuple[Rule, ...]] = {}
    """Built-in failure signatures, for kinds that can only be read too."""
    find_program: Callable[[str], str | None]
    """The path of an executable on PATH; None: there is none."""
    is_program_of: Callable[[str, str], bool] = lambda _package, _path: False
    """Test whether a program is the vendor's own, and not a script in its place."""
    inheritable: Mapping[str, str] = {}
    """Variables of `environ` that every program is given."""
    of_person: Mapping[str, str] = {}
    """Variables for programs that the configuration names for the daemon: all but secrets."""
    read_text: Callable[[str], str | None]
    """A settings file (`~/…`) of the user, at most 256 KiB; None: not there."""
    changed_at: Callable[[str], float | None]
    """Time at which a file (`~/…`) was last changed."""
    environ: Mapping[str, str]
    fingerprint: Fingerprinter
    read_log: LogReader
    read_chunks: ChunkReader = no_chunks
    home: str
    runs_root: Path
    luck: Callable[[], float]
    """A float in [0, 1)."""
    mint: Callable[[], str]
    """A new id part: unique, sortable by time, letters and digits."""
    has_route: Callable[[], bool] = lambda: True
    """Test whether this machine has a default route."""
    keep_ready: Callable[[Call], Awaitable[bool]] = nothing_stays
    """Starts the program of a call that stays for a later prompt; whether there is one then."""
    end_watchers: Callable[[Call, str], Awaitable[None]] = nothing_obeys
    """Ends what rests and would obey at once what a call may write below a directory."""
    residents: Callable[[], Sequence[Resting]] = lambda: ()
    """Programs that stay after a prompt."""
    attach: Attach = nothing_is_left
    end_leftover: EndLeftover = nobody_is_left
    boot_id: str = ""
    """Identity of this boot of the machine."""
    variables_of: Callable[[int, tuple[str, ...]], Mapping[str, str]] = lambda _pid, _names: {}
    """Named variables with which a process of ours was started."""
    open_window: Callable[[DelegationId, int], None] = lambda _delegation, _most: None
    """Let people follow a log: the delegation, and how many windows there may be."""
    open_places: Callable[
        [Confinement, Mapping[str, str]], tuple[tuple[str, ...], tuple[str, ...]]
    ] = lambda _confinement, _environ: ((), ())
    """Makes places that are to be made; the directories that may be written to, and where git keeps
    the repository."""
    look_at_git: Callable[[AttemptId, str], bytes] = lambda _attempt, _cwd: b""
    """Files that git runs and obeys in the repositories of a directory; empty: it has none."""
    recall_git: Callable[[AttemptId, bytes], None] = lambda _attempt, _known: None
    """Hands over what an earlier daemon has found."""
    put_git_back: Callable[[AttemptId, bytes], tuple[str, ...]] = lambda _attempt, _known: ()
    """Drops what has changed of that, and returns the paths."""
    private: tuple[str, ...] = ()
    """Files and directories of the daemon that no confined program may read."""
    shortage: Callable[[int], str | None] = lambda beginning: None
    """Resource of which this process has too little to begin more work; None: nothing."""
    has_room: Callable[[int], bool] = lambda beginning: True
    """Test whether there are file descriptors to follow one more attempt."""
    gateway_token: Callable[[str], str | None] = lambda _attempt: None
    """Token for the gateway of an attempt, or of a shared server (empty name); None: no gateway."""
    secret_values: SecretValues = field(default_factory=SecretValues)
    """Values that are not shown: secrets of the configuration and the daemon's environment."""
    taught: Taught = field(default_factory=Taught)
    """Weights learned from this machine's own samples of failures."""
    secrets: Secrets = field(default_factory=NoLook)
    probe: Probe = field(default_factory=NoProbe)

    def conceal(self, text: str) -> str:
        """Mask secrets that are known by value."""
        return self.secret_values.conceal(text)

    def redact(self, text: str) -> str:
        """Mask secrets known by value or by shape, in text that is kept or given out."""
        return redact(self.conceal(text))


class Settings(Struct, frozen=True, kw_only=True):
    """Values decided by the configuration; replaced as a whole at a reload."""

    policy: Policy
    options: Mapping[BackendId, Options]
    asks_plans_of: frozenset[str] = frozenset()
    """Kinds whose program may be started to ask for the use of its plan."""
    own_variables: frozenset[str] = frozenset()
    """Variables that hold a secret of the daemon itself, which are for no program."""
    rules_for: Callable[[str], tuple[Rule, ...]] = lambda _: ()
    """The user's signatures for a kind; they come before the built-in ones."""

    def with_seen(self, seen: Policy) -> "Settings":
        """Keep what was seen of opencode servers and projects, which is not in the file."""
        policy = structs.replace(
            self.policy,
            served=seen.served,
            contexts=seen.contexts,
            projects=seen.projects,
            windows=seen.windows,
        )
        return structs.replace(self, policy=policy)

    def options_of(self, backend: BackendId) -> Options:
        return self.options.get(backend, Options())
