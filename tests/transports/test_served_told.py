"""What of a helper server's state is news to whoever has not listened for a while."""

from typing import Any

from fallbackd.transports.opencode.link import Told, ToldEvent, ToldSnapshot


def updated(name: str, **info: Any) -> ToldEvent:
    info = {"id": name, "role": "assistant", **info}
    return {"type": "message.updated", "properties": {"sessionID": "s", "info": info}}


def part(name: str, text: str, **more: Any) -> ToldEvent:
    said = {"id": name, "type": "text", "text": text, **more}
    return {"type": "message.part.updated", "properties": {"sessionID": "s", "part": said}}


def delta(name: str) -> ToldEvent:
    return {
        "type": "message.part.delta",
        "properties": {"sessionID": "s", "partID": name, "delta": "x"},
    }


def state(*messages: tuple[ToldEvent, ...], **more: Any) -> ToldSnapshot:
    """Each message with its parts."""
    listed = [
        {
            "info": first["properties"]["info"],
            "parts": [each["properties"]["part"] for each in parts],
        }
        for first, *parts in messages
    ]
    wanted: dict[str, Any] = {"main": "s", "children": (), "statuses": {}}
    return ToldSnapshot(messages={"s": listed}, **wanted | more)


def told(*events: ToldEvent) -> Told:
    found = Told()
    for each in events:
        found.take(each)
    return found


def test_what_was_told_is_not_told_again() -> None:
    message, text = updated("m"), part("p", "one")
    assert list(told(message, text).missed(state((message, text)))) == []


def test_message_comes_before_its_parts_and_each_once() -> None:
    before, after, text = updated("m"), updated("m", finish="stop"), part("p", "one")
    knows = told(before)
    assert list(knows.missed(state((after, text)))) == [after, text]
    assert list(knows.missed(state((after, text)))) == []


def test_state_that_has_changed_since_is_told() -> None:
    before, after = part("p", ""), part("p", "one")
    message = updated("m")
    assert list(told(message, before).missed(state((message, after)))) == [after]


def test_piece_of_a_text_is_stale_once_the_text_is_whole() -> None:
    knows = told(updated("m"), part("p", ""))
    assert not knows.has(delta("p"))
    list(knows.missed(state((updated("m"), part("p", "one")))))
    assert knows.has(delta("p"))
    assert not knows.has(delta("another"))


def test_status_is_told_where_it_is_another_one() -> None:
    busy = {"type": "busy"}
    retry = {"type": "retry", "next": 5}
    knows = told({"type": "session.status", "properties": {"sessionID": "s", "status": busy}})
    (event,) = knows.missed(state(statuses={"s": retry}))
    assert event["properties"] == {"sessionID": "s", "status": retry}
    assert list(knows.missed(state(statuses={"s": retry}))) == []


def test_compaction_is_told_by_its_summary() -> None:
    summary = updated("m", summary=True, finish="stop")
    knows = told(updated("m", summary=True))
    kinds = [each["type"] for each in knows.missed(state((summary,)))]
    assert kinds == ["message.updated", "session.compacted"]
    assert list(knows.missed(state((summary,)))) == []


def test_session_of_a_subagent_is_told_once_whatever_its_totals() -> None:
    knows = told()
    for tokens in (1, 2):
        child = {"id": "c", "parentID": "s", "tokens": tokens}
        found = list(knows.missed(state(children=(child,))))
        assert [each["type"] for each in found] == (["session.created"] if tokens == 1 else [])
    assert knows.children == {"c": "s"}


def test_turn_is_settled_when_it_is_idle_and_its_end_is_written_down() -> None:
    open_message = updated("m")
    for end in ({"finish": "stop"}, {"error": {"name": "APIError"}}, {"time": {"completed": 1}}):
        assert state((updated("m", **end),)).is_settled
        assert not state((updated("m", **end),), statuses={"s": {"type": "busy"}}).is_settled
    assert not state((open_message,)).is_settled
    assert not state((updated("m", role="user"),)).is_settled
    assert not state().is_settled
