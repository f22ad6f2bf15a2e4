"""The text of a lesson: its sections, directives and Markdown, as HTML with every number computed.

The one file that knows `markdown_it`. The format is `content/README.md`.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token

from qkv.errors import FileError
from qkv.trace import Trace

from .expressions import compute, show, written
from .formulas import FORMULAS, formula
from .snippets import coloured, printed

__all__ = ["IDENTIFIER", "Ask", "LessonText", "Section"]

IDENTIFIER = r"[a-z0-9][a-z0-9-]{0,79}"
_SECTION = re.compile(rf"## (?P<title>.+?)\s+\{{#(?P<id>{IDENTIFIER})\}}\s*")
_DIRECTIVE = re.compile(r":::(?P<name>[a-z]+)(?:\s+(?P<rest>.*))?")
_CHOICE = re.compile(r"- \[(?P<right>[ x])\] (?P<text>.+)")
_FENCE = re.compile(r"\s{0,3}(?P<run>`{3,}|~{3,})")


# What is built --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ask:
    """A pause or a check: a question, its answer, and choices (HTML, right or not) if there are any."""

    id: str
    kind: str
    question: str
    answer: str
    choices: list[tuple[str, bool]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        choices = [{"html": text, "right": right} for text, right in self.choices]
        return {
            "id": self.id,
            "kind": self.kind,
            "question": self.question,
            "answer": self.answer,
            "choices": choices or None,
        }


@dataclass
class Section:
    """One section; `title` is HTML, `name` the same in plain text, `prompt` asks for the note."""

    id: str
    title: str
    name: str
    html: str = ""
    prompt: str | None = None
    checks: list[Ask] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "title": self.title,
            "html": self.html,
            "prompt": self.prompt,
            "checks": [ask.to_dict() for ask in self.checks],
        }


# The text -------------------------------------------------------------------------------------------------------------


class LessonText:
    """Reads a lesson line by line: sections and directives here, everything between them is Markdown."""

    def __init__(self, file: Path, names: Mapping[str, Any]) -> None:
        self.file = file
        self.names = names
        self.intro = ""
        self.sections: list[Section] = []
        self._asked: set[str] = set()

    def read(self, lines: list[str], start: int) -> None:
        waiting: list[str] = []
        first = start
        fence = ""
        at = start
        while at < len(lines):
            line = lines[at]
            fence = _fence_after(line, fence)
            section = None if fence else line.startswith("## ")
            directive = None if fence else _DIRECTIVE.fullmatch(line)
            if not section and not directive:
                waiting.append(line)
                at += 1
                continue
            self._emit(self.markdown(waiting, first))
            waiting = []
            if section:
                self._open_section(line, at)
                at += 1
            else:
                assert directive is not None
                at = self._directive(lines, at, directive["name"], directive["rest"] or "")
            first = at
        self._emit(self.markdown(waiting, first))

    def _emit(self, text: str) -> None:
        if self.sections:
            self.sections[-1].html += text
        else:
            self.intro += text

    def _open_section(self, line: str, at: int) -> None:
        found = _SECTION.fullmatch(line)
        if not found:
            raise self.wrong(at, f"{line!r} must be a title and an id such as {{#scores}}; add the id")
        if any(section.id == found["id"] for section in self.sections):
            raise self.wrong(at, f"there are two sections {found['id']!r}; give one another id")
        title = self.inline(found["title"], at)
        name = html.unescape(re.sub(r"<[^>]*>", "", title))
        self.sections.append(Section(found["id"], title, name))

    # Directives -------------------------------------------------------------------------------------------------------

    def _directive(self, lines: list[str], start: int, name: str, rest: str) -> int:
        """Build one directive; gives the line after it."""
        fence = ""
        for end in range(start + 1, len(lines)):
            fence = _fence_after(lines[end], fence)
            if not fence and lines[end].strip() == ":::":
                break
        else:
            raise self.wrong(start, f":::{name} is never closed; end it with a line of :::")
        make = getattr(self, f"_make_{name}", None)
        if make is None:
            raise self.wrong(start, f"there is no directive :::{name}; see content/README.md")
        self._emit(make(rest.strip(), lines[start + 1 : end], start))
        return end + 1

    def _make_figure(self, rest: str, body: list[str], at: int) -> str:
        name, *options = _words(rest) or [""]
        if not re.fullmatch(IDENTIFIER, name):
            raise self.wrong(at, ":::figure needs the name of the figure; write it after it")
        given = {}
        for option in options:
            key, equals, expression = option.partition("=")
            if not equals or not key.isidentifier():
                raise self.wrong(at, f"the option {option!r} must be name=expression; write it so")
            given[key] = self._computed(expression, at)
        return (
            f'<figure class="interactive" data-figure="{name}" data-options="{_attribute(given)}">'
            f'<div class="stage"></div>{self._caption(body, at)}</figure>\n'
        )

    def _make_trace(self, rest: str, body: list[str], at: int) -> str:
        found = self.names.get(rest)
        if not isinstance(found, Trace):
            raise self.wrong(at, f":::trace needs a trace that let names, but {rest!r} came; add it to let")
        inputs = {"query": found.query, "keys": found.keys, "values": found.values, "allowed": found.mask}
        return f'<figure class="trace" data-trace="{_attribute(inputs)}">{_table(found)}{self._caption(body, at)}</figure>\n'

    def _make_formula(self, rest: str, body: list[str], at: int) -> str:
        if rest not in FORMULAS:
            raise self.wrong(at, f"there is no formula {rest!r}; there are {', '.join(FORMULAS)}")
        return f'<figure class="formula">{formula(rest)}{self._caption(body, at)}</figure>\n'

    def _make_aside(self, rest: str, body: list[str], at: int) -> str:
        title = f'<p class="remark-title">{self.inline(rest, at)}</p>' if rest else ""
        return f'<aside class="remark">{title}{self.markdown(body, at + 1)}</aside>\n'

    def _make_note(self, rest: str, body: list[str], at: int) -> str:
        if rest or not self.sections or self.sections[-1].prompt is not None:
            raise self.wrong(at, ":::note stands once in a section and takes nothing after its name; leave it out")
        self.sections[-1].prompt = self.markdown(body, at + 1)
        return ""

    def _make_pause(self, rest: str, body: list[str], at: int) -> str:
        return self._ask("pause", rest, body, at)

    def _make_check(self, rest: str, body: list[str], at: int) -> str:
        return self._ask("check", rest, body, at)

    def _ask(self, kind: str, name: str, body: list[str], at: int) -> str:
        if not re.fullmatch(IDENTIFIER, name) or name in self._asked or not self.sections:
            raise self.wrong(at, f":::{kind} stands in a section and needs an id of its own; write it after it")
        if body.count(":::answer") != 1:
            raise self.wrong(at, f":::{kind} needs its answer after one line :::answer; add it")
        self._asked.add(name)
        middle = body.index(":::answer")
        choices = [found for line in body[:middle] if (found := _CHOICE.fullmatch(line))]
        # Blank lines in place of the choices keep the line numbers.
        asked = ["" if _CHOICE.fullmatch(line) else line for line in body[:middle]]
        ask = Ask(
            id=name,
            kind=kind,
            question=self.markdown(asked, at + 1),
            answer=self.markdown(body[middle + 1 :], at + 2 + middle),
            choices=[(self.inline(choice["text"], at + 1), choice["right"] == "x") for choice in choices],
        )
        self.sections[-1].checks.append(ask)
        inputs = "".join(
            f'<label><input type="radio" name="{name}" value="{number}"> <span>{text}</span></label>'
            for number, (text, _) in enumerate(ask.choices)
        )
        group = f'<fieldset class="choices"><legend>Choose one</legend>{inputs}</fieldset>' if inputs else ""
        return (
            f'<section class="ask" data-kind="{kind}" data-ask="{name}">'
            f'<div class="question">{ask.question}{group}</div>'
            f'<details><summary>Show the answer</summary><div class="answer">{ask.answer}</div></details></section>\n'
        )

    def _caption(self, body: list[str], at: int) -> str:
        text = self.markdown(body, at + 1)
        return f"<figcaption>{text}</figcaption>" if text else ""

    # Markdown ---------------------------------------------------------------------------------------------------------

    def markdown(self, lines: list[str], first: int) -> str:
        """HTML of some lines, of which the first is `lines[first]` of the file."""
        env = {"builder": self, "first": first}
        tokens = _MARKDOWN.parse("\n".join(lines), env)
        _prepare(tokens)
        return str(_MARKDOWN.renderer.render(tokens, _MARKDOWN.options, env))

    def inline(self, text: str, at: int) -> str:
        """HTML of a piece of running text."""
        return str(_MARKDOWN.renderInline(text, {"builder": self, "first": at}))

    def show(self, text: str, at: int) -> str:
        try:
            return show(text, self.names)
        except FileError as error:
            raise self.wrong(at, str(error)) from error

    def _computed(self, expression: str, at: int) -> Any:
        try:
            return compute(expression, self.names)
        except FileError as error:
            raise self.wrong(at, str(error)) from error

    def place(self, at: int) -> str:
        return f"{self.file.name}:{at + 1}"

    def wrong(self, at: int, sentence: str) -> FileError:
        return FileError(f"{self.place(at)}: {sentence}")


def _fence_after(line: str, fence: str) -> str:
    """The fence that is open after this line, if one is."""
    found = _FENCE.match(line)
    if not found:
        return fence
    if not fence:
        return found["run"]
    closes = found["run"].startswith(fence) and line.strip() == found["run"]
    return "" if closes else fence


def _words(text: str) -> list[str]:
    """Split at blanks that are outside of brackets and quotes."""
    words, depth, quote = [""], 0, ""
    for c in text:
        if quote:
            quote = "" if c == quote else quote
        elif c in "\"'":
            quote = c
        depth += (c in "[(") - (c in "])")
        if c == " " and not depth and not quote:
            words.append("")
        else:
            words[-1] += c
    return [word for word in words if word]


def _attribute(value: Any) -> str:
    try:
        return html.escape(json.dumps(value, ensure_ascii=False, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise FileError(f"an option must be numbers, texts or lists of them ({error}); choose a field") from error


def _table(found: Trace) -> str:
    """The steps of a trace with a row per key; `masked` stands where there is no number."""
    heads = ("key", "q·k", f"q·k / √{len(found.query)}", "− maximum", "exp", "weight", "value", "weight · value")
    rows = zip(
        map(str, range(len(found.keys))),
        map(written, found.dot_products),
        map(written, found.masked_scores),
        map(written, found.shifted_scores),
        map(written, found.exponentials),
        map(written, found.weights),
        (written(value, "given") for value in found.values),
        map(written, found.contributions),
        strict=True,
    )
    head = "".join(f'<th scope="col">{title}</th>' for title in heads)
    body = "".join(
        f'<tr><th scope="row">{key}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>' for key, *cells in rows
    )
    foot = (
        f'<tr><th scope="row">sum</th><td colspan="3"></td><td>{written(found.sum)}</td>'
        f"<td>{written(sum(found.weights))}</td><td></td><td>{written(found.context)}</td></tr>"
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody><tfoot>{foot}</tfoot></table>"


# Markdown, and what is ours in it -------------------------------------------------------------------------------------


def _computed_rule(state: StateInline, silent: bool) -> bool:
    """`{{ … }}` in running text."""
    if not state.src.startswith("{{", state.pos):
        return False
    end = state.src.find("}}", state.pos)
    if end < 0 or end > state.posMax:
        return False
    if not silent:
        token = state.push("computed", "data", 0)
        token.content = state.src[state.pos + 2 : end]
    state.pos = end + 2
    return True


def _render_computed(self: RendererHTML, tokens: list[Token], index: int, options: Any, env: Any) -> str:
    token = tokens[index]
    shown: str = env["builder"].show(token.content, env["first"] + token.meta.get("line", 0))
    return shown


def _render_fence(self: RendererHTML, tokens: list[Token], index: int, options: Any, env: Any) -> str:
    token = tokens[index]
    builder: LessonText = env["builder"]
    at = env["first"] + (token.map[0] if token.map else 0)
    language, *words = token.info.split() or [""]
    code = coloured(token.content) if language == "python" else html.escape(token.content)
    marked = f' class="language-{html.escape(language)}"' if language else ""
    block = f'<pre class="code"><code{marked}>{code}</code></pre>'
    if not words:
        return f'<div class="snippet">{block}</div>\n'
    if language != "python" or words[0] != "run" or not all(word.startswith("raises=") for word in words[1:]):
        raise builder.wrong(
            at, f"the fence says {token.info!r}; write python, or python run, or python run raises=NAME"
        )
    raises = words[1].removeprefix("raises=") if words[1:] else None
    said = html.escape(printed(token.content, builder.place(at), raises).rstrip("\n"))
    return f'<div class="snippet">{block}<pre class="output"><samp>{said}</samp></pre></div>\n'


def _prepare(tokens: list[Token]) -> None:
    """Tell each computation its line, and turn the styles of table cells, which the page may not have, into classes."""
    for token in tokens:
        line = token.map[0] if token.map else 0
        for child in token.children or ():
            line += child.type in ("softbreak", "hardbreak")
            child.meta["line"] = line
        style = str(token.attrs.pop("style", ""))
        if style:
            token.attrs["class"] = style.replace("text-align:", "align-")


def _safe_link(url: str) -> bool:
    return url.startswith(("https://", "#"))


def _refuse_image(self: RendererHTML, tokens: list[Token], index: int, options: Any, env: Any) -> str:
    at = env["first"] + tokens[index].meta.get("line", 0)
    raise env["builder"].wrong(at, "a lesson has no images; use :::figure")


def _markdown() -> MarkdownIt:
    md = MarkdownIt("commonmark", {"html": False}).enable("table")
    md.validateLink = _safe_link  # type: ignore[method-assign]
    md.inline.ruler.before("backticks", "computed", _computed_rule)
    md.add_render_rule("computed", _render_computed)
    md.add_render_rule("fence", _render_fence)
    md.add_render_rule("image", _refuse_image)
    return md


_MARKDOWN = _markdown()
