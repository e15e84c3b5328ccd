"""OpenAI's own package against the built-in model."""

import base64
import json
import struct
import threading
import time
import urllib.request

import openai
import pytest
from pydantic import BaseModel, ConfigDict, Field

ASK = [{"role": "user", "content": "Name three rivers"}]


@pytest.fixture(scope="session")
def client(onebit):
    return openai.OpenAI(base_url=f"{onebit}/v1", api_key="unused", max_retries=0, timeout=120)


def chat(client, **fields):
    fields = {"model": "seedling", "messages": ASK, "max_tokens": 24, "temperature": 0, **fields}
    return client.chat.completions.create(**fields)


def test_whole_and_streamed_are_the_same(client):
    whole = chat(client)
    text, usage = "", None
    for chunk in chat(client, stream=True, stream_options={"include_usage": True}):
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
        usage = chunk.usage or usage
    assert text == whole.choices[0].message.content and text
    assert whole.choices[0].finish_reason in ("stop", "length")
    assert usage.completion_tokens == whole.usage.completion_tokens
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens


def test_the_same_request_again_is_cached(client):
    messages = [{"role": "user", "content": "What do trees do all day? " * 20}]
    first = chat(client, messages=messages, max_tokens=8)
    second = chat(client, messages=messages, max_tokens=8)
    assert second.choices[0].message.content == first.choices[0].message.content
    assert second.usage.prompt_tokens_details.cached_tokens > 0.5 * second.usage.prompt_tokens


def test_a_conversation_reads_only_what_is_new(client):
    messages, before = [{"role": "system", "content": "You are a helpful friend. " * 12}], 0
    for turn in ["Hello", "What is a tree?", "And a river?", "Thank you"]:
        messages.append({"role": "user", "content": turn})
        answer = chat(client, messages=messages, max_tokens=12)
        cached = answer.usage.prompt_tokens_details.cached_tokens
        if before:
            # Up to the header of the last answer, cut down to whole pages at most.
            assert cached >= before - 64 - 8, (turn, cached, before)
        before = answer.usage.prompt_tokens
        messages.append({"role": "assistant", "content": answer.choices[0].message.content})


def test_several_answers(client):
    answer = chat(client, n=3, temperature=1, seed=5)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    alone = chat(client, temperature=1, seed=5)
    assert alone.choices[0].message.content == answer.choices[0].message.content
    assert len({choice.message.content for choice in answer.choices}) > 1


def test_seeds(client):
    texts = [chat(client, temperature=1, seed=seed).choices[0].message.content for seed in (1, 1, 2)]
    assert texts[0] == texts[1] and texts[0] != texts[2]


def test_logprobs(client):
    answer = chat(client, logprobs=True, top_logprobs=3, extra_body={"repetition_penalty": 1})
    entries = answer.choices[0].logprobs.content
    assert b"".join(bytes(entry.bytes) for entry in entries).decode() == answer.choices[0].message.content
    for entry in entries:
        assert len(entry.top_logprobs) == 3 and entry.logprob <= 0
        assert entry.logprob == max(top.logprob for top in entry.top_logprobs), "greedy takes the likeliest"


def test_stop_and_bias(client):
    text = chat(client).choices[0].message.content
    word = text.split()[2]
    assert chat(client, stop=word).choices[0].message.content == text[: text.index(word)]
    banned = chat(client, logprobs=True).choices[0].logprobs.content[0]
    token = tokens(client, banned.token)[0]
    assert chat(client, logit_bias={str(token): -100}).choices[0].message.content != text


def tokens(client, text):
    base = str(client.base_url).removesuffix("/v1/")
    body = json.dumps({"content": text}).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{base}/tokenize", data=body)) as answer:
        return json.load(answer)["tokens"]


def test_reasoning(client):
    thought = chat(client, extra_body={"enable_thinking": True, "thinking_budget": 6}, max_tokens=40)
    assert thought.usage.completion_tokens_details.reasoning_tokens <= 6
    assert thought.choices[0].message.content
    plain = chat(client, reasoning_effort="none")
    assert plain.usage.completion_tokens_details.reasoning_tokens == 0 and plain.choices[0].message.content
    assert getattr(plain.choices[0].message, "reasoning_content", None) is None


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
        },
    },
}


def test_forced_tools(client):
    for choice in ["required", {"type": "function", "function": {"name": "get_weather"}}]:
        answer = chat(client, tools=[WEATHER], tool_choice=choice, max_tokens=120, parallel_tool_calls=False)
        call = answer.choices[0].message.tool_calls[0]
        assert answer.choices[0].finish_reason == "tool_calls" and call.function.name == "get_weather"
        arguments = json.loads(call.function.arguments)
        assert isinstance(arguments["city"], str) and isinstance(arguments["days"], int)
    streamed = ""
    for chunk in chat(client, tools=[WEATHER], tool_choice="required", max_tokens=120, stream=True, parallel_tool_calls=False):
        for part in (chunk.choices[0].delta.tool_calls or []) if chunk.choices else []:
            streamed += part.function.arguments or ""
    assert json.loads(streamed) == arguments


def test_no_tools(client):
    answer = chat(client, tools=[WEATHER], tool_choice="none")
    assert answer.choices[0].message.tool_calls is None and "<tool_call>" not in answer.choices[0].message.content


def test_schema(client):
    class River(BaseModel):
        # Bounds, lest a small model write a name without end, or names for ever.
        model_config = ConfigDict(extra="forbid")
        name: str = Field(max_length=20)
        length_km: int = Field(ge=0, le=9999)
        wet: bool

    answer = client.chat.completions.parse(
        model="seedling", messages=ASK, response_format=River, temperature=0, max_tokens=150
    )
    river = answer.choices[0].message.parsed
    assert isinstance(river.name, str) and isinstance(river.length_km, int) and isinstance(river.wet, bool)
    answer = chat(client, response_format={"type": "json_object"}, max_tokens=200)
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer.choices[0].message.content), dict)
    with_reasoning = chat(
        client,
        extra_body={"enable_thinking": True, "thinking_budget": 5},
        response_format={"type": "json_schema", "json_schema": {"name": "r", "schema": River.model_json_schema()}},
        max_tokens=200,
    )
    River.model_validate_json(with_reasoning.choices[0].message.content)


def test_regex(client):
    answer = chat(client, extra_body={"structured_outputs": {"regex": "[0-9]{3}-[0-9]{4}"}})
    assert len(answer.choices[0].message.content) == 8
    answer = chat(client, extra_body={"guided_choice": ["yes", "no"]})
    assert answer.choices[0].message.content in ("yes", "no")


def test_what_cannot_be_honoured_is_a_400(client):
    for fields, param in [
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}}}, "response_format"),
        ({"extra_body": {"guided_regex": "("}}, "guided_regex"),
        ({"n": 0}, "n"),
        ({"temperature": -1}, "temperature"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/"}}]}]}, "messages[0].content[0]"),
    ]:
        with pytest.raises(openai.BadRequestError) as refused:
            chat(client, **fields)
        assert refused.value.param == param, refused.value


def test_long_prompts_are_refused_with_both_numbers(client):
    with pytest.raises(openai.BadRequestError) as refused:
        chat(client, messages=[{"role": "user", "content": "river " * 5000}])
    assert refused.value.code == "context_length_exceeded"


def test_models(client):
    assert [model.id for model in client.models.list()] == ["seedling"]
    assert client.models.retrieve("gpt-4o").id == "seedling"
    assert chat(client, model="gpt-4o").model == "seedling"
    with pytest.raises(openai.NotFoundError):
        chat(client, model="other")


def test_completions(client):
    answer = client.completions.create(model="seedling", prompt=["Once upon", "A tree"], max_tokens=8, temperature=0, logprobs=2)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert len(answer.choices[0].logprobs.tokens) == len(answer.choices[0].logprobs.token_logprobs)
    streamed = "".join(
        chunk.choices[0].text
        for chunk in client.completions.create(model="seedling", prompt="Once upon", max_tokens=8, temperature=0, stream=True)
    )
    assert streamed == answer.choices[0].text


def test_responses(client):
    fields = {"model": "seedling", "input": "Name three rivers", "temperature": 0, "max_output_tokens": 24}
    whole = client.responses.create(**fields)
    assert whole.output_text and whole.usage.output_tokens > 0
    with client.responses.stream(**fields) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response() if kinds[-1] == "response.completed" else None
    assert kinds[0] == "response.created" and kinds[-1] in ("response.completed", "response.incomplete")
    if final:
        assert final.output_text == whole.output_text
    tool = {"type": "function", "strict": False, **WEATHER["function"]}
    called = client.responses.create(
        **{**fields, "max_output_tokens": 120}, tools=[tool], tool_choice="required", parallel_tool_calls=False
    )
    call = called.output[-1]
    assert call.type == "function_call" and "city" in json.loads(call.arguments)
    with pytest.raises(openai.BadRequestError):
        client.responses.create(**fields, previous_response_id=whole.id)


def test_a_client_that_leaves_frees_its_place(client, onebit):
    for _ in range(10):
        stream = chat(client, stream=True, max_tokens=1500, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
    begun = time.monotonic()
    while running(onebit) > 0:
        assert time.monotonic() - begun < 5, "requests go on for nobody"
        time.sleep(0.05)


def running(base):
    with urllib.request.urlopen(f"{base}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(int(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running{"))


def test_neighbours_do_not_change_an_answer(client):
    prompts = ["Hi", "Tell me about the sea", "Why is the sky blue? " * 30]
    ask = lambda text: chat(client, messages=[{"role": "user", "content": text}], max_tokens=16).choices[0].message.content
    alone = [ask(text) for text in prompts]
    together = [None] * len(prompts)

    def work(index):
        together[index] = ask(prompts[index])

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(prompts))]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert together == alone


def test_pictures(scripted):
    client = openai.OpenAI(base_url=f"{scripted}/v1", api_key="none")
    made = client.images.generate(model="brush", prompt="a tree", size="256x512", n=2, extra_body={"seed": 5, "steps": 1})
    assert len(made.data) == 2 and made.output_format == "png" and made.size == "256x512"
    png = base64.b64decode(made.data[0].b64_json)
    assert png.startswith(b"\x89PNG") and struct.unpack(">II", png[16:24]) == (256, 512)
    stream = client.images.generate(model="brush", prompt="a tree", size="256x256", stream=True, extra_body={"seed": 5, "steps": 3})
    events = list(stream)
    assert [event.type for event in events].count("image_generation.progress") >= 3
    assert events[-1].type == "image_generation.completed" and base64.b64decode(events[-1].b64_json).startswith(b"\x89PNG")
    with pytest.raises(openai.BadRequestError, match="b64_json"):
        client.images.generate(model="brush", prompt="a tree", response_format="url")
    with pytest.raises(openai.BadRequestError, match="/v1/images/generations"):
        client.chat.completions.create(model="brush", messages=[{"role": "user", "content": "hi"}])
    kinds = {model.id: model.kind for model in client.models.list()}
    assert kinds["brush"] == "image" and kinds["script"] == "text"
