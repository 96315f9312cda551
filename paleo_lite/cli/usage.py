"""One sentence about a command line that cannot be parsed: what is wrong, and what would be right."""

from __future__ import annotations

import click

from ..errors import join_with_or


def usage_sentence(error: click.UsageError) -> str:
    """Return what is wrong with a command line, with the nearest options or the command that lists them."""
    command = "" if error.ctx is None else error.ctx.command_path
    message = " ".join(error.format_message().split())
    if isinstance(error, click.NoSuchOption):
        message = f"no option is called `{error.option_name}`"
        if error.possibilities:
            return f"{message}: did you mean {join_with_or([f'`{name}`' for name in sorted(error.possibilities)])}?"
    elif not isinstance(error, click.MissingParameter) and "unexpected extra argument" not in message:
        return message
    return f"{message.rstrip('.')}: `{command} --help` shows what it takes" if command else message
