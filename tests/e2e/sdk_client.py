"""
One answer by an official client library, in an interpreter that has them: `.venv-sdk`.

    API_KEY=… python sdk_client.py CLIENT URL MODEL

Prints `{"text", "end"}`: what the library takes for the answer, and how it says that it ended.
The libraries' own retries are off. An error of theirs ends it with status 1 and its name.
"""

import json
import os
import sys

import anthropic
import openai

KEY = os.environ["API_KEY"]
SAID = "say pong"


def chat(url: str, model: str) -> tuple[str, object]:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)
    text, end = "", None
    for chunk in client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": SAID}], stream=True
    ):
        for choice in chunk.choices:
            text += choice.delta.content or ""
            end = choice.finish_reason or end
    return text, end


def chat_whole(url: str, model: str) -> tuple[str, object]:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)
    found = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": SAID}]
    )
    (choice,) = found.choices
    return choice.message.content or "", choice.finish_reason


def responses(url: str, model: str) -> tuple[str, object]:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)
    text, end = "", None
    for event in client.responses.create(model=model, input=SAID, stream=True):
        if event.type == "response.output_text.delta":
            text += event.delta
        if event.type in ("response.completed", "response.failed", "response.incomplete"):
            end = event.response.status
    return text, end


def stored(url: str, model: str) -> tuple[str, object]:
    """One answer, then everything that can be asked of it by its id; how the last question ends."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)
    made = client.responses.create(model=model, input=SAID, background=True)
    found = client.responses.retrieve(made.id)
    assert found.id == made.id
    *_, last = client.responses.retrieve(made.id, stream=True)
    assert last.type == "response.completed"
    assert client.responses.input_items.list(made.id).data == []
    assert client.responses.cancel(made.id).status == "cancelled"
    client.responses.delete(made.id)
    try:
        client.responses.retrieve(made.id)
    except openai.NotFoundError as error:
        return found.output_text, error.code
    return found.output_text, None


def messages(url: str, model: str) -> tuple[str, object]:
    client = anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0)
    with client.messages.stream(
        model=model, max_tokens=99, messages=[{"role": "user", "content": SAID}]
    ) as stream:
        stream.until_done()
        return stream.get_final_text(), stream.get_final_message().stop_reason


def messages_thinking(url: str, model: str) -> tuple[str, object]:
    """
    A conversation of four turns that changes its backend with each: `first` and `other` are chains.

    The end is a list of the blocks of each turn, as the library has put them together.
    """
    client = anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0)
    tool = {"name": "Bash", "input_schema": {"type": "object", "properties": {"command": {}}}}
    said: list[dict[str, object]] = [{"role": "user", "content": SAID}]
    turns = []
    for chain in ("other", "first", "other", "first"):
        with client.messages.stream(
            model=chain,
            max_tokens=4096,
            thinking={"type": "enabled", "budget_tokens": 1024},
            messages=said,
            tools=[tool],
        ) as stream:
            stream.until_done()
            answer = stream.get_final_message()
        blocks = [block.model_dump(exclude_none=True) for block in answer.content]
        turns.append(blocks)
        calls = [one["id"] for one in blocks if one["type"] == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": id, "content": "done"} for id in calls]
        said += [
            {"role": "assistant", "content": blocks},
            {"role": "user", "content": results or "and then?"},
        ]
    return model, turns


def chat_thinking(url: str, model: str) -> tuple[str, object]:
    """The same in chat completions, by a client that sends what the model thought back with it."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)
    tool = {"type": "function", "function": {"name": "Bash", "parameters": {"type": "object"}}}
    said: list[dict[str, object]] = [{"role": "user", "content": SAID}]
    turns = []
    for chain in ("other", "first", "other", "first"):
        text, thought, calls, end = "", "", {}, None
        for chunk in client.chat.completions.create(
            model=chain, messages=said, tools=[tool], stream=True
        ):
            for choice in chunk.choices:
                end = choice.finish_reason or end
                text += choice.delta.content or ""
                thought += getattr(choice.delta, "reasoning_content", None) or ""
                for one in choice.delta.tool_calls or []:
                    call = calls.setdefault(one.index, {"id": one.id, "name": "", "arguments": ""})
                    call["name"] += one.function.name or ""
                    call["arguments"] += one.function.arguments or ""
        turns.append({"text": text, "thought": thought, "calls": list(calls.values()), "end": end})
        made = [
            {
                "id": one["id"],
                "type": "function",
                "function": {"name": one["name"], "arguments": one["arguments"]},
            }
            for one in calls.values()
        ]
        answer = {"role": "assistant", "content": text or None, "reasoning_content": thought}
        said.append(answer | ({"tool_calls": made} if made else {}))
        said += [{"role": "tool", "tool_call_id": one["id"], "content": "done"} for one in made]
        said += [] if made else [{"role": "user", "content": "and then?"}]
    return model, turns


def embeddings(url: str, model: str) -> tuple[str, object]:
    """The numbers of its vector, which the library asks for in base64."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)
    found = client.embeddings.create(model=model, input=SAID)
    return found.model, [found.data[0].embedding, found.usage.prompt_tokens]


def completions(url: str, model: str) -> tuple[str, object]:
    """The older API, as a stream."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)
    text, end = "", None
    for chunk in client.completions.create(model=model, prompt=SAID, stream=True):
        for choice in chunk.choices:
            text += choice.text
            end = choice.finish_reason or end
    return text, end


def google(url: str, model: str) -> tuple[str, object]:
    """Streamed and whole answers, a chat, and what is asked beside a conversation."""
    from google import genai  # slow to import, and for one client only

    client = genai.Client(api_key=KEY, http_options=genai.types.HttpOptions(base_url=url))
    pieces = client.models.generate_content_stream(model=model, contents=SAID)
    text = "".join(one.text or "" for one in pieces)
    whole = client.models.generate_content(model=model, contents=SAID)
    chat = client.chats.create(model=model)
    turns = [chat.send_message(SAID).text for _ in range(2)]
    tokens = client.models.count_tokens(model=model, contents=SAID).total_tokens
    vector = client.models.embed_content(model="e", contents=SAID).embeddings[0].values
    listed = [one.name for one in client.models.list()]
    end = whole.candidates[0].finish_reason
    return text, [whole.text, end, turns, tokens, vector, f"models/{model}" in listed]


CLIENTS = {
    "google": google,
    "openai-completions": completions,
    "openai-embeddings": embeddings,
    "openai-chat": chat,
    "openai-chat-whole": chat_whole,
    "openai-responses": responses,
    "openai-stored": stored,
    "openai-thinking": chat_thinking,
    "anthropic": messages,
    "anthropic-thinking": messages_thinking,
}

if __name__ == "__main__":
    try:
        text, end = CLIENTS[sys.argv[1]](*sys.argv[2:])
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {error}")
    json.dump({"text": text, "end": end}, sys.stdout)
