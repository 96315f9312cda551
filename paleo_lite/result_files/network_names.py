"""Networks by the names that tools give to them: repositories, files, model types with a size."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..architectures.locate import find_release
from ..text import normalize_name

_VARIANT = re.compile(
    r"[-_. ](?:instruct|chat|it|hf|gguf|base|fp8|nvfp4|awq|gptq|ud|\d{4}|i?q\d\w*|bf16|f16|\d{5}-of-\d{5})(?=[-_. ]|$)"
)


def find_network_name(name: str, names: Iterable[str]) -> str | None:
    """Return which of the named networks a served name or a file's name is of, also by a release of it; or None."""
    plain = name.rpartition("/")[2].lower()
    shorter = plain
    while (cut := _VARIANT.sub("", shorter)) != shorter:
        shorter = cut
    by_name = {normalize_name(listed): listed for listed in names}
    for candidate in (plain, shorter, shorter.removeprefix("meta-")):
        match = by_name.get(normalize_name(candidate))
        if match is not None:
            return match
    release = find_release(shorter)
    return None if release is None else release.stem
