"""Anthropic's own package against the built-in model."""

import anthropic
import pytest

ASK = [{"role": "user", "content": "Name three rivers"}]


@pytest.fixture(scope="session")
def client(onebit):
    return anthropic.Anthropic(base_url=onebit, api_key="unused", max_retries=0, timeout=120)


# The package no longer knows the field; the API does.
GREEDY = {"temperature": 0}


def ask(client, **fields):
    return client.messages.create(**{"model": "seedling", "messages": ASK, "max_tokens": 24, "extra_body": GREEDY, **fields})


def test_whole_and_streamed_are_the_same(client):
    whole = ask(client)
    with client.messages.stream(model="seedling", messages=ASK, max_tokens=24, extra_body=GREEDY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert final.stop_reason == whole.stop_reason


def test_reasoning_comes_when_it_is_asked_for(client):
    assert [block.type for block in ask(client).content] == ["text"]
    thought = ask(client, thinking={"type": "enabled", "budget_tokens": 8}, max_tokens=60)
    assert [block.type for block in thought.content][-1] == "text"


def test_tools(client):
    tool = {
        "name": "get_weather",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    }
    choice = {"type": "any", "disable_parallel_tool_use": True}
    answer = ask(client, tools=[tool], tool_choice=choice, max_tokens=120)
    call = answer.content[-1]
    assert answer.stop_reason == "tool_use" and call.name == "get_weather" and isinstance(call.input["city"], str)
    with client.messages.stream(
        model="seedling", messages=ASK, max_tokens=120, extra_body=GREEDY, tools=[tool], tool_choice=choice
    ) as stream:
        assert stream.get_final_message().content[-1].input == call.input
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    messages = [*ASK, {"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    assert ask(client, messages=messages, tools=[tool]).content


def test_stop_sequences_and_prefill(client):
    text = ask(client).content[0].text
    word = text.split()[2]
    cut = ask(client, stop_sequences=[word])
    assert cut.content[0].text == text[: text.index(word)]
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", word)
    begun = [*ASK, {"role": "assistant", "content": "The first river is"}]
    assert ask(client, messages=begun).content[0].text


def test_counting(client):
    counted = client.messages.count_tokens(model="seedling", messages=ASK, system="Be brief.").input_tokens
    usage = ask(client, system="Be brief.").usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens


def test_errors(client):
    with pytest.raises(anthropic.NotFoundError):
        ask(client, model="other")
    with pytest.raises(anthropic.BadRequestError):
        ask(client, tools=[{"type": "bash_20250124", "name": "bash"}])
    with pytest.raises(anthropic.BadRequestError):
        ask(client, messages=[{"role": "user", "content": "river " * 5000}])


def test_models(client):
    assert [model.id for model in client.models.list()] == ["seedling"]
