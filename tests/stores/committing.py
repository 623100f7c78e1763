"""
A program that commits until it is killed. Run with the path of a database.

Each decision counts a session up and notes the count. Its line on stdout is the place in the
journal, written after the decision was acknowledged.
"""

import os
import sys
from pathlib import Path

import anyio

from fallbackd.core.decision import Decision, Note, PutSession
from fallbackd.core.ids import BackendId, SessionId
from fallbackd.core.records import Keys, Session, Snapshot
from fallbackd.stores.sqlite import open_sqlite

S1 = SessionId("s1")


def one_more(snapshot: Snapshot) -> Decision:
    count = 1 if snapshot.session is None else snapshot.session.ignored_reports + 1
    session = Session(
        session=S1,
        original=BackendId("codex"),
        current=BackendId("codex"),
        ignored_reports=count,
        created_at=0.0,
        last_used_at=float(count),
    )
    return Decision(
        changes=(PutSession(session), Note(kind="counted", at=0.0, fields={"n": count}))
    )


async def commit_for_ever(path: Path) -> None:
    store = await open_sqlite(path, now=0.0)

    async def commit() -> None:
        while True:
            _, notes = await store.transact(Keys(session=S1), one_more)
            os.write(1, f"{notes[0].seq}\n".encode())

    async with anyio.create_task_group() as committers:
        for _ in range(5):
            committers.start_soon(commit)


if __name__ == "__main__":
    anyio.run(commit_for_ever, Path(sys.argv[1]))
