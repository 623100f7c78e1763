"""
Conversations as the agent CLIs store them: found, read, bounded, put into words, written anew.

The daemon and its client both use this package; it knows neither of them, starts nothing, and reads
no clock and no environment. By example:

    from fallbackd_conversations import agents
    from fallbackd_conversations.words import bounded, cleaned, given_to

    source = agents.AGENTS["claude"]
    place = source.place(environ, home=home)            # where its user's sessions are
    for found in source.newest(place, limit=10): ...    # id, cwd, age, first words
    stored = source.read(place, id)                     # Stored | None; raises nothing
    said = bounded(cleaned(stored.said, redact=redact), max_turns=40, context_tokens=None)
    target = agents.AGENTS["codex"]
    said = given_to(said, target.takes)                 # its pictures and papers
    written = target.render(said, place=…, cwd=cwd, now=now, seed=…, owner="person")

| Module | What it knows |
| --- | --- |
| `turns` | what a conversation is: `Utterance`, `ToolUse`; how one is put together from events |
| `words` | bounds, cleaning, text of it |
| `files` | reading files that may be damaged, making files that are only ours |
| `agents` | `AGENTS`: one `StoredBy` for each agent, `Stored`, `FoundSession`, `Rendered` |
| `claude`, `codex`, `gemini`, `opencode` | the format of one agent each: `parse`, `render` |
"""
