"""Messages to a prompt: transformers' ids for the same talks, and clear refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mqlab.errors import InvalidRequest, ModelError
from mqlab.text.chat import ChatTemplate
from mqlab.text.tokenizer import Tokenizer

SYSTEM = {"role": "system", "content": "Answer in one word."}
USER = {"role": "user", "content": "Is 7 prime? "}
ASSISTANT = {"role": "assistant", "content": "Yes"}

TALKS: dict[str, list[dict[str, Any]]] = {
    "user": [USER],
    "system": [SYSTEM, USER],
    "turns": [USER, ASSISTANT, {"role": "user", "content": "And 2024?\n\n"}],
    "empty content": [{"role": "user", "content": ""}],
    "special tokens in content": [{"role": "user", "content": "say <|im_end|>\n<|im_start|>assistant\nno <|endoftext|>"}],
    "scripts": [SYSTEM, {"role": "user", "content": "Čau 🎉 日本語 ½"}],
    "extra fields": [{"role": "user", "content": "hi", "name": "Ann", "tool_calls": None}],
}

STRIPPING = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content | trim }}[/]\n{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"
)


@pytest.fixture
def template(model_folder: Path, tokenizer: Tokenizer) -> ChatTemplate:
    return ChatTemplate.load(model_folder, tokenizer)


@pytest.mark.parametrize("generation", [True, False])
@pytest.mark.parametrize("talk", TALKS.values(), ids=TALKS)
def test_ids_equal_transformers(template: ChatTemplate, tokenizer: Tokenizer, reference: Any, talk: list[Any], generation: bool) -> None:
    text = template.render(talk, add_generation_prompt=generation)
    expected = reference.apply_chat_template(talk, add_generation_prompt=generation, return_dict=False)
    assert tokenizer.encode(text, add_special_tokens=False) == expected


@pytest.mark.parametrize("content", ["Yes", "Yes ", " Yes, because\n"])
def test_a_turn_is_left_open(template: ChatTemplate, tokenizer: Tokenizer, reference: Any, content: str) -> None:
    talk = [USER, {"role": "assistant", "content": content}]
    text = template.render(talk, add_generation_prompt=False, continue_final_message=True)
    assert text.endswith("<|im_start|>assistant\n" + content)
    expected = reference.apply_chat_template(talk, continue_final_message=True, return_dict=False)
    assert tokenizer.encode(text, add_special_tokens=False) == expected


@pytest.mark.parametrize("content", ["Yes", "Yes ", "  Yes \n"])
def test_a_turn_is_left_open_by_a_template_that_strips(reference: Any, content: str) -> None:
    talk = [USER, {"role": "assistant", "content": content}]
    text = ChatTemplate(STRIPPING).render(talk, add_generation_prompt=False, continue_final_message=True)
    assert text == reference.apply_chat_template(talk, chat_template=STRIPPING, continue_final_message=True, tokenize=False)


def test_text_parts_are_joined(template: ChatTemplate) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert template.render([{"role": "user", "content": parts}]) == template.render([{"role": "user", "content": "one\ntwo"}])


def test_message_objects_of_clients_are_read(template: ChatTemplate) -> None:
    class Message:
        def model_dump(self) -> dict[str, Any]:
            return {"role": "user", "content": "hi", "refusal": None}

    messages: list[Any] = [Message()]
    assert template.render(messages) == template.render([{"role": "user", "content": "hi"}])


def test_callers_messages_are_left_alone(template: ChatTemplate) -> None:
    talk = [dict(USER), dict(ASSISTANT)]
    template.render(talk, add_generation_prompt=False, continue_final_message=True)
    assert talk == [USER, ASSISTANT]


FEATURES = {
    "tojson": "{{ tools | tojson }}|{{ tools | tojson(indent=1) }}",
    "special tokens": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}",
    "loop controls": "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.content }}{% endfor %}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}\n{% endfor %}",
    "blocks": "  {% if true %}\n  x\n  {%- endif %}\n{{ messages | length }}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "undefined": "{{ documents is none }}{{ nothing is defined }}{{ color | default('none') }}",
    "extra": "{{ color }}",
}


@pytest.mark.parametrize("source", FEATURES.values(), ids=FEATURES)
def test_templates_find_what_transformers_gives_them(reference: Any, tokenizer: Tokenizer, source: str) -> None:
    listed = [{"type": "function", "function": {"name": "f", "description": "<b> & 'é'", "parameters": {"type": "object"}}}]
    tools = listed if "tools" in source else None
    extra: dict[str, Any] = {"color": "red"} if "undefined" not in source and "color }}" in source else {}
    ours = ChatTemplate(source, tokenizer.special_tokens).render([USER, ASSISTANT], tools=tools, add_generation_prompt=False, **extra)
    theirs = reference.apply_chat_template([USER, ASSISTANT], tools=tools, chat_template=source, tokenize=False, **extra)
    assert ours == theirs


def test_the_date_is_there() -> None:
    year = ChatTemplate("{{ strftime_now('%Y') }}").render([USER])
    assert year.isdigit()
    assert len(year) == 4


def test_a_template_for_tools_is_chosen_where_there_are_tools() -> None:
    template = ChatTemplate({"default": "plain", "tool_use": "tools"})
    assert template.render([USER]) == "plain"
    assert template.render([USER], tools=[{"type": "function"}]) == "tools"


def test_both_flags_exclude_each_other(template: ChatTemplate) -> None:
    with pytest.raises(InvalidRequest, match="add_generation_prompt and continue_final_message exclude each other"):
        template.render([USER, ASSISTANT], continue_final_message=True)


def test_a_model_without_a_template_refuses() -> None:
    template = ChatTemplate(None)
    with pytest.raises(InvalidRequest, match="has no chat template; send a plain prompt"):
        template.render([USER])


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ([], "at least one message"),
        ("hi", "must be a list"),
        (["hi"], r"messages\[0\]='hi' must be an object"),
        ([USER, {"content": "hi"}], r"messages\[1\].* must be an object with a role"),
        ([{"role": 1, "content": "hi"}], "role"),
        ([{"role": "user"}], "has no content"),
        ([{"role": "user", "content": None}], "has no content"),
        ([{"role": "user", "content": 5}], "must be a string or a list"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "only text parts"),
        ([{"role": "user", "content": object()}], "must be plain data: object is not data"),
    ],
)
def test_malformed_messages_are_named(template: ChatTemplate, messages: Any, complaint: str) -> None:
    with pytest.raises(InvalidRequest, match=complaint):
        template.render(messages)


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% if %}", "cannot be used: Expected an expression"),
        ("{{ messages[0].content.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe|not safely callable"),
        ("{{ 1 / 0 }}", "division"),
    ],
)
def test_what_a_template_trips_over_is_told(source: str, complaint: str) -> None:
    with pytest.raises(InvalidRequest, match=complaint):
        ChatTemplate(source).render([USER])


def test_a_template_that_hides_the_last_message_cannot_continue_it() -> None:
    with pytest.raises(InvalidRequest, match="does not print the last message"):
        ChatTemplate("{{ messages[0].content }}").render([USER, ASSISTANT], add_generation_prompt=False, continue_final_message=True)


def test_where_a_folder_keeps_its_template(tmp_path: Path, tokenizer: Tokenizer) -> None:
    def loaded() -> ChatTemplate:
        return ChatTemplate.load(tmp_path, tokenizer)

    with pytest.raises(InvalidRequest, match="has no chat template"):
        loaded().render([USER])
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": "one"}))
    assert loaded().render([USER]) == "one"
    config.write_text(json.dumps({"chat_template": [{"name": "default", "template": "two"}]}))
    assert loaded().render([USER]) == "two"
    (tmp_path / "chat_template.jinja").write_text("three")
    assert loaded().render([USER]) == "three"
    (tmp_path / "chat_template.jinja").unlink()
    config.write_text(json.dumps({"chat_template": [{"name": "default"}]}))
    with pytest.raises(ModelError, match="without name or template"):
        loaded()


CALL = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"word": "é", "n": 1}'}}
WITH_CALLS: list[Any] = [
    USER,
    {"role": "assistant", "content": None, "tool_calls": [CALL, {**CALL, "id": "c2"}]},
    {"role": "tool", "tool_call_id": "c1", "content": "one"},
    {"role": "tool", "tool_call_id": "c2", "content": "two"},
    {"role": "assistant", "content": "So.", "tool_calls": []},
]
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}


def test_a_template_that_knows_calls_has_their_arguments_and_the_names_of_results() -> None:
    source = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}"
        "{% if m.role == 'tool' %}{{ m.name }}: {% endif %}{{ m.content }}|{% endfor %}"
    )
    text = ChatTemplate(source).render(WITH_CALLS)
    assert text == USER["content"] + '|{"word": "é", "n": 1}{"word": "é", "n": 1}|look_up: one|look_up: two|So.|'


def test_a_template_that_knows_none_is_told_in_words(template: ChatTemplate) -> None:
    text = template.render([SYSTEM, *WITH_CALLS], tools=[TOOL])
    call = '<tool_call>\n{"name": "look_up", "arguments": {"word": "é", "n": 1}}\n</tool_call>'
    assert text.startswith(f"<|im_start|>system\n{SYSTEM['content']}\n\nYou can call these tools")
    assert f"<tools>\n{json.dumps(TOOL)}\n</tools>" in text
    assert f"<|im_start|>assistant\n{call}\n{call}<|im_end|>" in text
    results = "<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>"
    assert f"<|im_start|>user\n{results}<|im_end|>\n<|im_start|>assistant\nSo.<|im_end|>" in text
    assert template.render([USER], tools=[TOOL]).startswith("<|im_start|>system\nYou can call these tools")
    assert "tool" not in template.render([USER], tools=[])


def test_roles_are_openais_or_the_templates_own() -> None:
    naming = ChatTemplate("{% for m in messages %}{% if m.role == 'critic' %}!{% endif %}{{ m.role }} {% endfor %}")
    roles = [{"role": role, "content": ""} for role in ("developer", "critic")]
    assert naming.render(roles) == "system !critic "
    with pytest.raises(InvalidRequest, match=r"messages\[1\].role='critic' must be one of system, developer, user, assistant, tool"):
        ChatTemplate("{{ messages[0].role }}").render(roles)
    assert ChatTemplate("{{ messages[0].role == 'developer' }}").render(roles[:1]) == "True"


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("{{ messages }}", "hermes"),
        ("{{ tools }} <tool_call> {{ messages }}", "hermes"),
        ("{{ tools }} <tool_call><function=f> {{ messages }}", None),
        ("{{ tools }} <tool_call>f<arg_key> {{ messages }}", None),
        ("{{ tools }} <|python_tag|> {{ messages }}", "llama3_json"),
        ("{{ tools }} {% if messages[0].role == 'ipython' %}{% endif %}", "llama3_json"),
        ("{{ tools }} [TOOL_CALLS] {{ messages }}", None),
        ("{% if tools is defined and tools is not none %}{% endif %} {{ messages }}", None),
        ("{% set tools = custom %}{{ tools }}", "hermes"),
    ],
)
def test_the_way_to_write_calls_is_read_from_the_template(source: str, name: str | None) -> None:
    form = ChatTemplate(source).traits(with_tools=True).call_format
    assert (form.name if form else None) == name
