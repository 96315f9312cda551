"""Where a buffer of JSON may be cut: by a guess from the bytes, or by counting brackets outside strings."""

from __future__ import annotations

import re

_GUESSES = 200
_TOKEN = re.compile(rb'["{}\[\],]')
_BRACKET = re.compile(rb'["{}\[\]]')
_COLON = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*")


def last_seam(buffer: bytes) -> int | None:
    """The comma of the last ``} , {`` with any white space."""
    end = len(buffer)
    for _ in range(_GUESSES):
        brace = buffer.rfind(b"{", 0, end)
        if brace < 0:
            return None
        before = buffer[max(brace - 256, 0) : brace].rstrip(b" \t\r\n")
        if before.endswith(b",") and before[:-1].rstrip(b" \t\r\n").endswith(b"}"):
            return max(brace - 256, 0) + len(before) - 1
        end = brace
    return None


def _string_end(buffer: bytes, start: int) -> int | None:
    """The place after the quote that closes the string whose contents start here."""
    quote = buffer.find(b'"', start)
    while quote >= 0:
        back = quote
        while back > start and buffer[back - 1] == 0x5C:
            back -= 1
        if (quote - back) % 2 == 0:
            return quote + 1
        quote = buffer.find(b'"', quote + 1)
    return None


def last_comma_and_end(buffer: bytes) -> tuple[int | None, int | None]:
    """The last comma between elements, and the bracket that closes the array where it is in the buffer.

    Where one string begins as another ends, what follows is no JSON, and is not looked through.
    """
    depth, place, comma, string = 0, 0, None, -1
    while True:
        # Inside an element commas mean nothing: looked for only between elements.
        match = (_TOKEN if depth == 0 else _BRACKET).search(buffer, place)
        if match is None:
            return comma, None
        token, place = match.group(), match.end()
        if token == b'"':
            end = _string_end(buffer, place)
            if end is None or match.start() == string:
                return comma, None
            place = string = end
        elif token in b"{[":
            depth += 1
        elif token == b",":
            comma = match.start()
        elif depth == 0:
            return comma, match.start()
        else:
            depth -= 1


def array_start(buffer: bytes, key: bytes) -> int | None:
    """The place after the bracket that opens the array: the outermost one, or the value of the key."""
    depth, place, last = 0, 0, (0, 0)
    while (match := _BRACKET.search(buffer, place)) is not None:
        token, place = match.group(), match.end()
        if token == b'"':
            end = _string_end(buffer, place)
            if end is None:
                return None
            last, place = (place, end), end
        elif token in b"{[":
            if token == b"[" and depth == 0:
                return match.end()
            is_key = depth == 1 and last[1] - last[0] == len(key) + 1 and buffer.startswith(key, last[0])
            if token == b"[" and is_key and _COLON.fullmatch(buffer, last[1], match.start()):
                return match.end()
            depth += 1
        else:
            depth -= 1
            if depth <= 0:
                return None
    return None
