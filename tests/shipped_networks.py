"""Names of shipped networks by what their files say, for parametrised tests: building each takes seconds.

`architectures/test_listing.py` compares them with the built networks.
"""

from __future__ import annotations

import json

import pytest

from paleo_lite.architectures import network_names
from paleo_lite.architectures.families.family import FAMILIES
from paleo_lite.files import shipped_folder

_CONFIGS = {}
for _name in network_names():
    _data = (shipped_folder("models") / f"{_name}.json").read_bytes()
    if b'"model_type"' in _data[:1000]:
        _CONFIGS[_name] = json.loads(_data)

PUBLISHED = [name for name, config in _CONFIGS.items() if "published" in config]
"""Networks whose publisher states the number of parameters."""

LANGUAGE_MODELS = [
    name for name, config in _CONFIGS.items() if FAMILIES.decoder(config.get("text_config", config)["model_type"])
]
"""Decoders of text."""


def _fields(name):
    config = _CONFIGS[name]
    return config.get("text_config", config)


def _form(name):
    """What a config has besides sizes: its type, its keys and its flags."""
    fields = _fields(name)
    flags = {(key, value) for key, value in fields.items() if isinstance(value, bool)}
    return fields["model_type"], frozenset(fields.keys() - {"published"}), frozenset(flags)


def _layers(name):
    fields = _fields(name)
    return fields.get("num_hidden_layers") or fields["n_layer"]


_SMALLEST = {_form(name): name for name in sorted(LANGUAGE_MODELS, key=_layers, reverse=True)}


def of_each_form(names):
    """Parametrize a test by network; `make thorough` takes those that differ from a smaller one in sizes alone."""
    chosen = {*_SMALLEST.values()}
    return pytest.mark.parametrize(
        "name", [pytest.param(name, marks=[] if name in chosen else pytest.mark.thorough) for name in names]
    )
