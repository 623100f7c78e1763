"""
Conversations as the agent CLIs store them: found, read, bounded, put into words, written anew.

The daemon and its client both use this package; it knows neither of them, starts nothing, and reads
no clock and no environment. By example:

    from fallbackd_conversations import agents
    from fallbackd_conversations.words import bounded, cleaned

    source = agents.AGENTS["claude"]
    place = source.place(environ, home=home)            # where its user's sessions are
    for found in source.newest(place, limit=10): ...    # id, cwd, age, first words
    stored = source.read(place, id)                     # Stored | None; raises nothing
    said = bounded(cleaned(stored.said, redact=redact), max_turns=40, context_tokens=None)
    target = agents.AGENTS["codex"]
    written = target.write(said, place=…, id=target.new_id(now), cwd=cwd, now=now, …)

| Module | What it knows |
| --- | --- |
| `turns` | what a conversation is: `Utterance`, `ToolUse`; how one is put together from events |
| `words` | bounds, cleaning, text of it |
| `files` | reading files that may be damaged, making files that are only ours |
| `agents` | `AGENTS`: one `StoredBy` for each agent, `Stored`, `FoundSession`, `Written` |
| `claude`, `codex`, `gemini`, `opencode` | the format of one agent each: `parse`, `render` |
"""
