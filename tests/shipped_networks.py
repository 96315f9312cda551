"""Names of shipped networks by what their files say, for parametrised tests: building each takes seconds.

`architectures/test_listing.py` compares them with the built networks.
"""

from __future__ import annotations

import json

from paleo_lite.architectures import network_names
from paleo_lite.architectures.language_models.families import FAMILIES
from paleo_lite.files import shipped_folder

_CONFIGS = {}
for _name in network_names():
    _data = (shipped_folder("models") / f"{_name}.json").read_bytes()
    if b'"model_type"' in _data[:1000]:
        _CONFIGS[_name] = json.loads(_data)

PUBLISHED = [name for name, config in _CONFIGS.items() if "published" in config]
"""Networks whose publisher states the number of parameters."""

LANGUAGE_MODELS = [
    name for name, config in _CONFIGS.items() if config.get("text_config", config)["model_type"] in FAMILIES
]
"""Decoders of text."""
