"""Configuration in file names, as documented by SURFBoard's data set: run_REP_config_NODES_GPUS_FABRIC_...

Tests: profiles/detect.py.
"""

from __future__ import annotations

import pytest

from paleo_lite.errors import BadValue
from paleo_lite.profiles.detect import parse_name


def test_a_name_of_surfboard() -> None:
    name = "run_0_config_16_2_ib_nvprof_2_resnet50_dali-cpu-to-gpu_32_fp16_fp32_ret_0_0.gzip"
    assert parse_name(name) == {
        "repetition": 0, "nodes": 16, "gpus_per_node": 2, "fabric": "ib", "profiler": "nvprof", "workers": 2,
        "network": "resnet50", "data_loader": "dali-cpu-to-gpu", "batch_size": 32, "gradient_precision": "fp16",
        "compute_precision": "fp32", "return_code": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "pattern", "found"),
    [
        ("trace.json", None, {}),
        ("run_0_config_16_2_ib", None, {}),
        ("nodes_04.txt", r"nodes_(?P<nodes>\d+)", {"nodes": 4}),
        ("vgg_x2.txt", r"(?P<network>[a-z]+)_(?P<scale>.\d)", {"network": "vgg", "scale": "x2"}),
        ("vgg.txt", r"(?P<network>[a-z]+)(_(?P<batch_size>\d+))?", {"network": "vgg"}),  # a group that took no part
        ("vgg_-1.txt", r"_(?P<shift>-?\d+)", {"shift": "-1"}),
    ],
)
def test_a_pattern_of_the_user_reads_the_configuration(name, pattern, found) -> None:
    assert parse_name(name, pattern) == found


@pytest.mark.parametrize(
    ("pattern", "message"),
    [(r"(?P<nodes>\d+", "is not a regular expression"), (r"nodes_(\d+)", "no named group")],
)
def test_an_invalid_pattern_is_refused(pattern, message) -> None:
    with pytest.raises(BadValue, match=message):
        parse_name("nodes_4", pattern)
