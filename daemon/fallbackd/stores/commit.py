"""Decisions on their way to the disk: who asked, what was decided, what is written for it."""

from collections.abc import Callable, Sequence

from fallbackd.core.changes import Decision, Journaled
from fallbackd.core.records import Keys, Snapshot
from fallbackd.ports.store import Outlives
from fallbackd.stores.database import Database
from fallbackd.stores.mirror import Draft
from fallbackd.stores.writes import Writes, writes_of

CommitAnswer = tuple[Decision, Sequence[Journaled]]


class CommitRequest:
    """One call of `transact`, until it has its answer."""

    def __init__(
        self,
        keys: Keys,
        run: Callable[[Snapshot], Decision],
        *,
        must_keep: bool,
        outlives: Outlives = "machine",
    ) -> None:
        self.keys = keys
        self.must_keep = must_keep
        self.outlives = outlives
        self.answer: CommitAnswer | None = None
        self.error: Exception | None = None
        self._run = run

    @property
    def is_done(self) -> bool:
        return self.answer is not None or self.error is not None

    def result(self) -> CommitAnswer:
        """
        Raises:
            Exception: What the decision raised, or why it cannot be kept.
        """
        if self.error is not None:
            raise self.error
        assert self.answer is not None
        return self.answer

    def decide(self, draft: Draft) -> tuple[CommitAnswer, Writes] | None:
        """Add the decision to a draft. None: it raised, and the draft is as it was."""
        try:
            decision = self._run(draft.snapshot(self.keys))
            writes = writes_of(decision.changes, after_seq=draft.last_seq)
        except Exception as error:  # raised where it was asked for, not to those beside it
            self.error = error
            return None
        return (decision, draft.add(decision.changes)), writes


class Commit:
    """Decisions that are being written together."""

    def __init__(self, requests: Sequence[CommitRequest], draft: Draft, writes: Writes) -> None:
        self.requests = requests
        self.draft = draft
        self.writes = writes
        self.answers: list[tuple[CommitRequest, CommitAnswer]] = []
        self.is_tried = False
        self.error: Exception | None = None

    def write(self, database: Database) -> None:
        """Once, however often it is asked for."""
        if self.is_tried:
            return
        try:
            self.writes.outlives_machine = not self.requests or any(
                one.outlives == "machine" for one in self.requests
            )
            database.write(self.writes)
        except Exception as error:  # whatever it is, nothing was written; the caller raises it
            self.error = error
        self.is_tried = True
