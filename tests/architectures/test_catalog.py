"""Networks by name and image size, and the cache of traces: empty, damaged or unwritable.

Tests: architectures/build.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from paleo_lite.architectures import catalog as catalog_module
from paleo_lite.architectures import find_network, network_names, trace_factory, write_descriptor
from paleo_lite.errors import BadDescriptor, BadValue, FactoryFailed, TraceFailed, UnknownName

WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name.partition(".")[0])
sys.meta_path.insert(0, Absent())
import importlib.metadata as metadata
version = metadata.version
def absent(name):
    if name in {absent!r}:
        raise metadata.PackageNotFoundError(name)
    return version(name)
metadata.version = absent
from paleo_lite.errors import MissingExtra
from paleo_lite.architectures import find_network, trace_factory, trace_named
from paleo_lite.architectures.torch_import import import_torch, import_torchvision
"""


def run(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PALEO_LITE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("name", ["ResNet-50", "resnet_50", "RESNET50", "resnet50"])
def test_names_ignore_case_and_punctuation(name):
    assert find_network(name).name == "resnet50"


@pytest.mark.parametrize(
    ("name", "near"), [("vgg61", "vgg16"), ("resnet5", "resnet50"), ("mobilnet_v2", "mobilenet_v2")]
)
def test_an_unknown_name_suggests_similar_names(name, near):
    with pytest.raises(UnknownName, match=near) as caught:
        find_network(name)
    assert near in caught.value.near


@pytest.mark.parametrize("name", ["", "../models/vgg16", "/etc/passwd", "vgg16/../vgg16"])
def test_names_are_not_paths(name):
    if name == "../models/vgg16":
        name = "../" + name
    with pytest.raises((UnknownName, BadDescriptor), match=r"no network is called|cannot be read \(No such file"):
        find_network(name)


@pytest.mark.parametrize("size", [0, -1, True, "224", 224.0, 65_537, 2**53 + 1])
def test_invalid_image_sizes(size):
    with pytest.raises(BadValue, match="integer from 1 to 65,536"):
        find_network("vgg16", size)


def test_the_default_image_size_needs_no_trace(cache):
    assert find_network("vgg16", 224) == find_network("vgg16")
    assert not cache.exists()


@pytest.mark.slow
def test_another_image_size_is_traced_once(cache, monkeypatch):
    # positions of the last convolutions: 6 x 6 at 192 pixels, 7 x 7 at 224
    network = find_network("vgg16", 192)
    assert network.layer("features.28").outputs == ((1, 512, 12, 12),)
    (entry,) = cache.iterdir()
    monkeypatch.setattr(catalog_module, "trace_named", lambda *_: pytest.fail("traced again"))
    assert find_network("vgg16", 192) == network
    monkeypatch.undo()
    monkeypatch.setenv("PALEO_LITE_CACHE", str(cache))
    entry.write_bytes(entry.read_bytes()[:100])
    assert find_network("vgg16", 192) == network
    assert find_network("vgg16", 160) != network
    assert len(list(cache.iterdir())) == 2


@pytest.mark.slow
def test_cache_entries_name_network_size_and_versions(cache):
    import importlib.metadata

    find_network("squeezenet1_1", 96)
    (entry,) = cache.iterdir()
    for part in ("squeezenet1_1", "96", importlib.metadata.version("torch").replace("+", "_")):
        assert part in entry.name


@pytest.mark.slow
def test_an_unwritable_cache_gives_a_note(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("PALEO_LITE_CACHE", str(tmp_path / "file" / "cache"))
    network = find_network("squeezenet1_1", 96)
    assert network.inputs == ((1, 3, 96, 96),)
    assert "could not be cached" in network.notes[-1]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "size"), [("vgg16", 8), ("vit_b_16", 225), ("maxvit_t", 225)])
def test_unsupported_image_sizes(name, size, cache):
    with pytest.raises(TraceFailed, match=name):
        find_network(name, size)


@pytest.mark.slow
def test_vision_transformer_at_another_image_size(cache):
    network = find_network("vit_b_32", 96)  # 9 patches and the class token
    assert network.layer("encoder.pos_embedding").weights == ((1, 10, 768),)


def test_descriptor_files(tmp_path):
    path = tmp_path / "mine.json"
    write_descriptor(find_network("alexnet"), path)
    assert find_network(str(path)) == find_network("alexnet")
    with pytest.raises(BadDescriptor, match="fixed image size, here 224"):
        find_network(str(path), 96)
    with pytest.raises(BadDescriptor, match="cannot be read"):
        find_network(str(tmp_path / "absent.json"))


@pytest.mark.spread(1)
@pytest.mark.slow
@pytest.mark.parametrize("absent", [["torch", "torchvision"], ["torchvision"]])
def test_missing_torch_is_reported(absent, tmp_path):
    code = WITHOUT.format(absent=absent) + (
        "assert find_network('vgg16').name == 'vgg16'\n"
        "calls = [lambda: find_network('vgg16', 96), lambda: trace_named('vgg16'), import_torchvision]\n"
        f"calls += [import_torch, lambda: trace_factory('a:b', [(3,)])] if 'torch' in {absent!r} else []\n"
        "for call in calls:\n"
        "    try: call()\n"
        "    except MissingExtra as error: assert \"pip install 'paleo-lite[torch]'\" in str(error), error\n"
        "    else: raise SystemExit('no error')\n"
        "print(len(calls))\n"
    )
    assert int(run(code, PALEO_LITE_CACHE=str(tmp_path))) == (5 if "torch" in absent else 3)


def test_a_shipped_network_imports_no_torch():
    assert "torch" not in run(
        "import sys; from paleo_lite.architectures import find_network, count_network\n"
        "count_network(find_network('resnet50')).total\n"
        "print([name for name in sys.modules if name.partition('.')[0] in ('torch', 'pandas', 'torchvision')])"
    )


FACTORIES = """
import torch
from torch import nn
made = nn.Linear(3, 4)
def factory(): return nn.Sequential(nn.Linear(3, 4))
def fails(): raise RuntimeError("no weights here")
def wrong(): return 3
def reads():
    return nn.Linear(3, int(torch.ones(4).sum().item()))
class Holder:
    make = staticmethod(factory)
"""


@pytest.fixture
def factories(tmp_path, monkeypatch):
    (tmp_path / "my_factories.py").write_text(FACTORIES)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "my_factories"


@pytest.mark.slow
@pytest.mark.parametrize("attribute", ["made", "factory", "reads", "Holder.make"])
def test_factories(attribute, factories):
    network = trace_factory(f"{factories}:{attribute}", [(3,)])
    assert network.inputs == ((1, 3),)
    assert [layer.kind for layer in network.layers] == ["linear"]
    assert network.parameters == 16


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        ("fails", "RuntimeError: no weights here"),
        ("wrong", "returned a int, not a torch.nn.Module"),
        ("absent", "has no attribute 'absent'"),
    ],
)
def test_factories_that_fail(attribute, message, factories):
    with pytest.raises(FactoryFailed, match=message):
        trace_factory(f"{factories}:{attribute}", [(3,)])


@pytest.mark.slow
@pytest.mark.parametrize("reference", ["nothing", ":", "a:", ":b", "a:b:c", "no_such_module_anywhere:x"])
def test_invalid_factory_references(reference):
    with pytest.raises(FactoryFailed):
        trace_factory(reference, [(3,)])


def test_all_networks_are_listed():
    assert len(network_names()) >= 82
    assert {"vgg16", "googlenet-caffe", "resnet50-caffe"} <= set(network_names())
    assert all(Path(name).name == name for name in network_names())


def test_a_file_that_is_no_network_is_named_as_such(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("picture.png").write_bytes(b"\x89PNG")
    Path("empty.json").touch()
    with pytest.raises(UnknownName, match=r"The file of a network ends in .*\.json"):
        find_network("picture.png")
    with pytest.raises(BadDescriptor, match=r"empty\.json: the file is empty"):
        find_network("empty.json")
