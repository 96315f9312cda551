"""Hooks of mkdocs: pages of the commands, pages of files in the root, links between pages, and formulas as MathML."""

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


_SOURCE_LINK = re.compile(r"\[(`[^`\]]+`)\]\((?:\.\./)+[^)]+\)")
"""Link to a file of the checkout, which is no part of the site: its name remains."""

_SEARCH_BOOSTS = {
    "glossary": 8.0, "reference/commands": 0.2, "reference/python": 0.01, "accuracy-tables": 0.2,
    "changelog": 0.1, "contributing": 0.1,
}  # fmt: skip
"""Weight of the search results on a page, by the start of its path. A match in a title weighs a thousand times as much
as a match in the text, so that without these weights attribute names would precede explanations."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are generated or copied from the root of the repository."""
    from mkdocs.structure.files import File

    pages = {page: (ROOT / name).read_text() for name, page in _FROM_ROOT.items()}
    pages |= {f"reference/commands/{name}.md": text for name, text in command_pages().items()}
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the page of every command to the navigation, below "Commands"."""
    reference = next(entry["Reference"] for entry in config.nav or [] if "Reference" in entry)
    for entry in reference:
        if "Commands" in entry:
            names = [name for name in command_pages() if name != "index"]
            below = [{name: f"reference/commands/{name}.md"} for name in names]
            entry["Commands"] = ["reference/commands/index.md", *below]
    return config


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Link files of the root and mentions such as ``docs/model.md`` to their pages, and set the search weight."""
    boost = next((number for start, number in _SEARCH_BOOSTS.items() if page.file.src_uri.startswith(start)), 1.0)
    page.meta["search"] = {"boost": boost}
    up = "../" * page.file.src_uri.count("/")
    if page.file.src_uri in _FROM_ROOT.values():
        markdown = markdown.replace("](docs/", "](")
    for name, target in _FROM_ROOT.items():
        markdown = markdown.replace(f"]({up}../{name})", f"]({up}{target})")
    markdown = _SOURCE_LINK.sub(r"\1", markdown)
    titles = dict(_titles(config.nav or []))

    def link(match: re.Match[str]) -> str:
        return f"[{titles[match[1]]}]({up}{match[1]})" if match[1] in titles else match[0]

    text = re.compile(r"^(?! {4}|```).*$", re.MULTILINE)
    pieces = re.split(r"(^```.*?^```$)", markdown, flags=re.DOTALL | re.MULTILINE)
    pieces[::2] = [text.sub(lambda line: _NAMED.sub(link, line[0]), piece) for piece in pieces[::2]]
    return "".join(pieces)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Convert the formulas marked by arithmatex to MathML, which browsers display without a script."""
    from latex2mathml.converter import convert

    def mathml(match: re.Match[str]) -> str:
        kind = "block" if match[1] == "div" else "inline"
        return f"<{match[1]} class='formula'>{convert(unescape(match[2]), display=kind)}</{match[1]}>"

    return _FORMULA.sub(mathml, html)


_FORMULA = re.compile(r'<(div|span) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)

_NAMED = re.compile(r"(?<!\]\()(?<![\w/])`?docs/([\w/-]+\.md)\b`?")


def _titles(nav: list[Any]) -> Iterator[tuple[str, str]]:
    """Yield the path and the title of each page in the navigation."""
    for entry in nav:
        for title, below in entry.items() if isinstance(entry, dict) else ():
            if isinstance(below, str):
                yield below, title
            else:
                yield from _titles(below)


def command_pages() -> dict[str, str]:
    """Return a Markdown page per command, by name, and an ``index`` page that lists the commands."""
    from paleo_lite.cli import main

    context = click.Context(main, info_name="paleo-lite")
    pages = {"index": ["# Commands", "", "| command | purpose |", "| :-- | :-- |"]}
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        pages["index"].append(f"| [`{name}`]({name}.md) | {_text(command.get_short_help_str(200))} |")
        pages[name] = _describe(command, click.Context(command, context, info_name=name), 1)
    pages["index"] += [
        "",
        "Every command has `--help`, and `--debug`, which shows the traceback of an error. "
        "[Output](../../output.md) describes the JSON that the commands print.",
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
    """Return the paragraphs of a docstring as Markdown; paragraphs marked with ``\\b`` are examples."""
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
    """Escape the characters of a plain text that Markdown would interpret as markup or HTML."""
    return re.sub(r"([|<*\\[\]])", r"\\\1", text)
