"""What else mkdocs does: the pages of commands from click, changelog and contributing from the root, formulas set."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
_FROM_ROOT = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md"}


_FOUND_FIRST = {
    "glossary": 8.0, "reference/commands": 0.2, "reference/python": 0.01, "accuracy-tables": 0.2,
    "changelog": 0.1, "contributing": 0.1,
}  # fmt: skip
"""How much more, or less, what is found on a page counts: a title alone counts a thousand times what a text does, and
an explanation should come before an attribute's name."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not files of this folder."""
    from mkdocs.structure.files import File

    pages = {page: (ROOT / name).read_text() for name, page in _FROM_ROOT.items()}
    pages |= {f"reference/commands/{name}.md": text for name, text in command_pages().items()}
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Give every command its line below "Commands"."""
    reference = next(entry["Reference"] for entry in config.nav or [] if "Reference" in entry)
    for entry in reference:
        if "Commands" in entry:
            names = [name for name in command_pages() if name != "index"]
            below = [{name: f"reference/commands/{name}.md"} for name in names]
            entry["Commands"] = ["reference/commands/index.md", *below]
    return config


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make what leads to a file lead to its page, links to the root and ``docs/model.md``; weigh it for search."""
    boost = next((number for start, number in _FOUND_FIRST.items() if page.file.src_uri.startswith(start)), 1.0)
    page.meta["search"] = {"boost": boost}
    up = "../" * page.file.src_uri.count("/")
    for name, target in _FROM_ROOT.items():
        markdown = markdown.replace(f"]({up}../{name})", f"]({up}{target})")
    titles = dict(_titles(config.nav or []))

    def link(found: re.Match[str]) -> str:
        return f"[{titles[found[1]]}]({up}{found[1]})" if found[1] in titles else found[0]

    text = re.compile(r"^(?! {4}|```).*$", re.MULTILINE)
    pieces = re.split(r"(^```.*?^```$)", markdown, flags=re.DOTALL | re.MULTILINE)
    pieces[::2] = [text.sub(lambda line: _NAMED.sub(link, line[0]), piece) for piece in pieces[::2]]
    return "".join(pieces)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Formulas as MathML, which browsers set without a script: what arithmatex found between dollars."""
    from latex2mathml.converter import convert

    def mathml(found: re.Match[str]) -> str:
        kind = "block" if found[1] == "div" else "inline"
        return f"<{found[1]} class='formula'>{convert(unescape(found[2]), display=kind)}</{found[1]}>"

    return _FORMULA.sub(mathml, html)


_FORMULA = re.compile(r'<(div|span) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)

_NAMED = re.compile(r"(?<!\]\()(?<![\w/])`?docs/([\w/-]+\.md)\b`?")


def _titles(nav: list[Any]) -> Iterator[tuple[str, str]]:
    """Path and title of each page in the navigation."""
    for entry in nav:
        for title, below in entry.items() if isinstance(entry, dict) else ():
            if isinstance(below, str):
                yield below, title
            else:
                yield from _titles(below)


def command_pages() -> dict[str, str]:
    """A page for each command, and one that lists them, as Markdown."""
    from paleo_lite.cli import main

    context = click.Context(main, info_name="paleo-lite")
    pages = {"index": ["# Commands", "", "| command | what it does |", "| :-- | :-- |"]}
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        pages["index"].append(f"| [`{name}`]({name}.md) | {_text(command.get_short_help_str(200))} |")
        pages[name] = _describe(command, click.Context(command, context, info_name=name), 1)
    pages["index"] += [
        "",
        "Every command takes `--help` and `--debug`, which shows where an error came from. "
        "What they print as JSON is described in [Output](../../output.md).",
    ]
    return {name: "\n".join(lines) + "\n" for name, lines in pages.items()}


def _describe(command: click.Command, context: click.Context, level: int) -> list[str]:
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    lines = [f"{'#' * level} {context.command_path}", "", "```text", usage, "```", "", *_help(command.help or "")]
    options = [option for option in command.get_params(context) if isinstance(option, click.Option)]
    options = [option for option in options if not option.hidden and option.name not in ("help", "debug")]
    if options:
        lines += ["**Options**", "", *(line for option in options for line in _option(option, context))]
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            lines += _describe(below, click.Context(below, context, info_name=name), level + 1)
    return lines


def _help(text: str) -> list[str]:
    """A docstring's paragraphs; what click leaves unwrapped (``\\b``) are examples."""
    lines: list[str] = []
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        unwrapped = paragraph.removeprefix("\b\n")
        example = unwrapped != paragraph
        lines += ["```sh", *textwrap.dedent(unwrapped).splitlines(), "```", ""] if example else [_text(paragraph), ""]
    return lines


def _option(option: click.Option, context: click.Context) -> list[str]:
    names, meaning = option.get_help_record(context) or (", ".join(option.opts), "")
    return [f"`{names}`", f":   {_text(meaning)}", ""]


def _text(text: str) -> str:
    """Plain text as Markdown: what it would take for markup or HTML stays as it is written."""
    return re.sub(r"([|<*\\[\]])", r"\\\1", text)
