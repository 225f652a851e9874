from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from perfgate.report.escape import LIMIT, Safe, code, markdown, plain

PARSER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
# What markdown and HTML give a meaning to, mixed with words, so that short examples hit it.
TEXT = st.text(st.sampled_from("ab1 \t\n.)-+=#*_`~|\\[]()<>!&;@:/\"'é\u200b") | st.characters(), max_size=30)


def shape(source):
    tokens = PARSER.parse(source)
    inner = [child for token in tokens for child in [token, *(token.children or ())]]
    return [token.type for token in inner if "text" not in token.type]


def embed(value):
    """Put a value wherever the template of the comment puts one."""
    table = f"| a | b |\n|:--|--:|\n| {value} | {value} |"
    return f"- {value}\n- **label** {value}\n\n1. {value}\n\n> {value}\n\n{table}\n\n**{value}**\n"


@given(TEXT)
@example("a\\")
@example("1. a")
@example("    a")
@example("- a\n- b")
@example("&lt;b&gt;")
def test_markdown__any_text_stays_text(text):
    value = markdown(f"x{text}x")

    assert shape(embed("word")) == shape(embed(value))


@given(TEXT.filter(lambda text: text.strip().isprintable() and text.strip() != ""))
@example("##")
def test_markdown__any_text_at_the_start_of_an_item_opens_nothing(text):
    value = markdown(text)

    assert shape("- word\n") == shape(f"- {value}\n")


@given(st.text())
def test_plain__one_short_line_without_control_characters(text):
    line = plain(text)

    assert len(line) <= LIMIT
    assert len(line.splitlines()) <= 1
    assert not any(ord(character) < 32 or 127 <= ord(character) < 160 for character in line)


@given(TEXT.filter(lambda text: plain(text) != ""))
def test_code__is_one_code_span_in_a_table_cell(text):
    assert shape(f"| a |\n|--|\n| {code(text)} |\n") == shape("| a |\n|--|\n| `word` |\n")


def test_code__is_not_escaped_again():
    assert isinstance(code("a"), Safe)


@pytest.mark.parametrize(
    "text", ["GH-1 and gh-22", "commit " + "0a" * 20, "$x^2$ and $$y$$", "a :tada: b", "#1 @all o/r#3", "https://x.y"]
)
def test_attack__a_reference_in_the_bot_s_name(text):
    """Fifty lines of a hand-off would leave cross-references all over the repository."""
    shown = markdown(text)

    assert not re.search(r"(?i)gh-\d|\b[0-9a-f]{40}\b|\$[^\s\u200b]|:[a-z]+:|[#@]\w|://", shown)
    assert re.sub("[\\\\\u200b]", "", shown) == text


@pytest.mark.parametrize("text", ["output_tok_per_s rose", "3.5 % in 2 blocks (a-b)", "results/2026-11-20-1", "é"])
def test_markdown__ordinary_text_is_left_alone(text):
    assert markdown(text) == text
