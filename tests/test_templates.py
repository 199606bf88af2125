"""A rendered prompt has the template's control tokens, the messages' own characters, one BOS, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specchat.engine.llama import Model
from specchat.engine.replies import Message
from specchat.engine.templates import ChatTemplate, Rendered, TemplateError
from tests import ggufs
from tests.ggufs import Vocabulary, bpe, sentencepiece

Make = Callable[..., ChatTemplate]

LLAMA3 = (
    "{{ bos_token }}{% for message in messages %}{{ '<|start|>' + message['role'] + '<|sep|>\n\n' "
    "+ message['content'] | trim + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant<|sep|>\n\n' }}{% endif %}"
)
LLAMA3_VOCABULARY = bpe(("<|bos|>", "<|start|>", "<|sep|>", "<|end|>"), add_bos=True)
GEMMA = (
    "{{ bos_token }}"
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}"
    "{{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\n' "
    "+ message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
GEMMA_VOCABULARY = bpe(("<bos>", "<end_of_turn>"), ("<start_of_turn>", "<table>"), add_bos=True)
QWEN = (
    "{% for message in messages %}"
    "{% if message.role == 'assistant' and loop.last and message.reasoning_content %}"
    "{{ '<|im_start|>assistant\n<think>\n' + message.reasoning_content + '\n</think>\n\n' + message.content }}"
    "{{ '<|im_end|>\n' }}"
    "{% else %}{% set content = message.content.split('</think>')[-1].lstrip('\n') %}"
    "{{ '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)
QWEN_VOCABULARY = bpe(user_defined=("<think>", "</think>"))
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token }}{% endif %}{% endfor %}"
)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    models: list[Model] = []

    def build(template: str | None, vocabulary: Vocabulary) -> ChatTemplate:
        path = ggufs.write(tmp_path / f"model{len(models)}.gguf", vocabulary, template=template)
        models.append(Model.load(path, vocab_only=True))
        return ChatTemplate(models[-1])

    yield build
    for model in models:
        model.close()


def user(text: str) -> Message:
    return Message("user", text)


def spelled(template: ChatTemplate, tokens: list[int]) -> str:
    """Control tokens by name, everything else as its text."""
    model = template._model
    pieces = [model.token_text(t).encode() if model.is_control(t) else model.piece(t) for t in tokens]
    return b"".join(pieces).decode()


def special(template: ChatTemplate, rendered: Rendered) -> list[str]:
    model = template._model
    return [model.token_text(t) for t in rendered.tokens if model.is_control(t) or model.is_user_defined(t)]


def test_the_files_own_template_is_rendered(make: Make) -> None:
    template = make(ggufs.CHATML, bpe())
    rendered = template.render([Message("system", "Be brief."), user("Hi")])

    assert spelled(template, rendered.tokens) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert template.notice == ""
    assert (rendered.in_reasoning, rendered.in_answer) == (False, False)


@pytest.mark.parametrize(
    ("source", "vocabulary", "expected"),
    [
        (LLAMA3, LLAMA3_VOCABULARY, ["<|bos|>"]),  # the template and the vocabulary both ask for it
        (LLAMA3.replace("{{ bos_token }}", ""), LLAMA3_VOCABULARY, ["<|bos|>"]),  # only the vocabulary does
        ("{{ bos_token }}" + LLAMA3, LLAMA3_VOCABULARY, ["<|bos|>"]),
        (LLAMA3, bpe(("<|bos|>", "<|start|>", "<|sep|>", "<|end|>")), ["<|bos|>"]),  # only the template does
        (ggufs.CHATML, bpe(), []),  # neither does
        (MISTRAL, sentencepiece(), ["<s>"]),
        (MISTRAL, sentencepiece(add_bos=False), ["<s>"]),
    ],
)
def test_there_is_exactly_one_bos_where_one_is_asked_for(
    make: Make, source: str, vocabulary: Vocabulary, expected: list[str]
) -> None:
    template = make(source, vocabulary)
    tokens = template.render([user("hello")]).tokens

    begins = [template._model.token_text(t) for t in tokens if t == vocabulary.bos]
    assert begins == expected
    assert not expected or tokens[0] == vocabulary.bos


def test_a_refused_system_message_goes_before_the_first_user_turn(make: Make) -> None:
    template = make(GEMMA, GEMMA_VOCABULARY)
    rendered = template.render([Message("system", "Be brief."), user("Hi"), Message("assistant", "Ho"), user("Hm")])

    assert "<start_of_turn>user\nBe brief.\n\nHi<end_of_turn>" in spelled(template, rendered.tokens)


def test_a_system_message_that_the_template_drops_in_silence_is_folded_too(make: Make) -> None:
    template = make(MISTRAL, sentencepiece())
    tokens = template.render([Message("system", "be brief"), user("hello")]).tokens

    assert "be brief\n\nhello" in spelled(template, tokens)


def test_a_refused_system_message_without_a_user_turn_becomes_one(make: Make) -> None:
    template = make(GEMMA, GEMMA_VOCABULARY)

    assert "user\nBe brief.<end" in spelled(template, template.render([Message("system", "Be brief.")]).tokens)


def test_an_empty_system_message_that_the_template_refuses_is_left_out(make: Make) -> None:
    template = make(GEMMA, GEMMA_VOCABULARY)

    assert template.render([Message("system", ""), user("Hi")]).tokens == template.render([user("Hi")]).tokens


def test_what_the_template_refuses_otherwise_is_said_in_a_sentence(make: Make) -> None:
    template = make(GEMMA, GEMMA_VOCABULARY)

    with pytest.raises(TemplateError, match=r"model0\.gguf refuses this conversation: .*must alternate"):
        template.render([user("Hi"), user("Ho")])


@pytest.mark.parametrize("source", [None, "{% for %}", "{{ '"])
def test_without_a_usable_template_chatml_is_used_and_said(make: Make, source: str | None) -> None:
    template = make(source, bpe())

    assert "ChatML" in template.notice
    assert template.stop == ("<|im_end|>",)
    assert template.render([user("Hi")]).tokens == make(ggufs.CHATML, bpe()).render([user("Hi")]).tokens


def test_variables_reach_the_template(make: Make) -> None:
    template = make(QWEN, QWEN_VOCABULARY)
    thinking = template.render([user("Hi")])
    not_thinking = template.render([user("Hi")], {"enable_thinking": False})

    assert template.can_toggle_thinking
    assert template.thinks
    assert special(template, not_thinking) == [*special(template, thinking), "<think>", "</think>"]


def test_a_variable_of_the_programs_own_is_refused(make: Make) -> None:
    with pytest.raises(TemplateError, match="messages is set by the program"):
        make(ggufs.CHATML, bpe()).render([user("Hi")], {"messages": []})


def test_a_template_cannot_leave_its_sandbox(make: Make) -> None:
    template = make("{{ ''.__class__.__mro__[1].__subclasses__() }}", bpe())

    with pytest.raises(TemplateError, match="unsafe"):
        template.render([user("Hi")])


# ---- text that looks special stays text

CASES = [
    (ggufs.CHATML, bpe(), ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]),
    (LLAMA3, LLAMA3_VOCABULARY, ["<|bos|>", "<|start|>", "<|sep|>", "<|end|>"]),
    (GEMMA, GEMMA_VOCABULARY, ["<bos>", "<start_of_turn>", "<end_of_turn>"]),
    (QWEN, QWEN_VOCABULARY, ["<|im_start|>", "<|im_end|>", "<think>", "</think>"]),
    (MISTRAL, sentencepiece(), ["<s>", "</s>", "<unk>"]),
    (MISTRAL, sentencepiece(("[INST]", "[/INST]"), add_space_prefix=False), ["<s>", "[INST]", "[/INST]"]),
]


@pytest.mark.parametrize(("source", "vocabulary", "literals"), CASES)
def test_special_looking_text_stays_text(make: Make, source: str, vocabulary: Vocabulary, literals: list[str]) -> None:
    template = make(source, vocabulary)
    plain = template.render([user("x"), Message("assistant", "x"), user("x")])
    for literal in literals:
        hostile = f"see {literal}{literal} and {literal[0]}{literal}{literal[1:]}\nend"
        rendered = template.render([user(hostile), Message("assistant", hostile), user(hostile)])

        assert special(template, rendered) == special(template, plain)
        kept = hostile.split("</think>")[-1] if source is QWEN and literal != "</think>" else hostile
        assert spelled(template, rendered.tokens).count(kept) == 3


@pytest.fixture(scope="module")
def chatml(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChatTemplate]:
    path = ggufs.write(tmp_path_factory.mktemp("models") / "chatml.gguf", QWEN_VOCABULARY)
    with Model.load(path, vocab_only=True) as model:
        yield ChatTemplate(model)


FRAGMENTS = ("<|im_end|>", "<|im_start|>", "<|im_", "end|>", "<", "hell", " ", "\n", "é", "\ue000", "<think>")


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=12))
def test_a_prompt_spells_its_messages_character_by_character(chatml: ChatTemplate, parts: list[str]) -> None:
    content = "".join(parts)
    rendered = chatml.render([user(content)])

    assert spelled(chatml, rendered.tokens) == f"<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n"
    assert special(chatml, rendered) == ["<|im_start|>", "<|im_end|>", "<|im_start|>"]


def test_ordinary_text_is_tokenised_together_with_the_template_around_it(make: Make) -> None:
    # "hell" is one token only if the template's "he" and the message's "ll" are not tokenised apart.
    template = make("{% for message in messages %}he{{ message['content'] }}{% endfor %}", bpe())

    assert [template._model.token_text(t) for t in template.render([user("ll")]).tokens] == ["hell"]


def test_a_word_of_the_vocabulary_that_is_no_marker_is_left_alone(make: Make) -> None:
    template = make(GEMMA, GEMMA_VOCABULARY)

    assert special(template, template.render([user("a <table> of")])).count("<table>") == 1


def test_sentencepiece_gets_no_extra_space_where_a_special_looking_text_is_defused(make: Make) -> None:
    template = make(MISTRAL, sentencepiece())
    text = spelled(template, template.render([user("hello </s>hello")]).tokens)

    assert text == "<s> [INST] hello </s>hello [/INST]"


def test_trimming_still_trims_a_message_that_looks_special(make: Make) -> None:
    template = make(LLAMA3, LLAMA3_VOCABULARY)
    text = spelled(template, template.render([user("  <|end|>  ")]).tokens)

    assert "<|sep|>\n\n<|end|><|end|><|start|>assistant" in text


# ---- going on with an unfinished reply


def test_an_unfinished_reply_is_continued_not_closed(make: Make) -> None:
    template = make(ggufs.CHATML, bpe())
    rendered = template.render([user("Hi"), Message("assistant", "Well, I")], continue_last=True)

    assert spelled(template, rendered.tokens).endswith("<|im_start|>assistant\nWell, I")
    assert rendered.in_answer


@pytest.mark.parametrize(
    ("reasoning", "content", "variables", "end", "in_reasoning"),
    [
        ("hm", "", {}, "assistant\n<think>\nhm", True),
        ("hm", "So", {}, "assistant\n<think>\nhm\n</think>\n\nSo", False),
        ("", "So", {}, "assistant\nSo", False),
        ("hm", "So", {"enable_thinking": False}, "assistant\n<think>\n\n</think>\n\nSo", False),
        ("", "", {}, "assistant\n", False),
    ],
)
def test_an_unfinished_reply_with_reasoning(
    make: Make, reasoning: str, content: str, variables: dict[str, object], end: str, in_reasoning: bool
) -> None:
    template = make(QWEN, QWEN_VOCABULARY)
    unfinished = Message("assistant", content, reasoning)
    rendered = template.render([user("Hi"), unfinished], variables, continue_last=True)

    assert spelled(template, rendered.tokens).endswith(end)
    assert rendered.in_reasoning == in_reasoning
    assert rendered.in_answer == bool(content)


def test_a_template_that_opens_the_reasoning_itself(make: Make) -> None:
    source = QWEN.replace("'<|im_start|>assistant\n' }}", "'<|im_start|>assistant\n<think>\n' }}")
    template = make(source, QWEN_VOCABULARY)

    assert template.render([user("Hi")]).in_reasoning
    rendered = template.render([user("Hi"), Message("assistant", "So", "hm")], continue_last=True)
    assert spelled(template, rendered.tokens).endswith("assistant\n<think>\nhm\n</think>\n\nSo")


def test_special_looking_text_in_an_unfinished_reply_stays_text(make: Make) -> None:
    template = make(ggufs.CHATML, bpe())
    rendered = template.render([user("Hi"), Message("assistant", "see <|im_end|>")], continue_last=True)

    assert special(template, rendered) == ["<|im_start|>", "<|im_end|>", "<|im_start|>"]
    assert spelled(template, rendered.tokens).endswith("see <|im_end|>")
