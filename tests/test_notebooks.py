"""The notebooks run with and without the measured data, and reproduce published values."""

from __future__ import annotations

import csv
import importlib.util
import re
import shlex
from functools import lru_cache
from pathlib import Path

import click
import nbformat
import pytest

from measured import DATA
from paleo_lite.cli import main

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[1] / "notebooks"
NEEDS = {
    "calibrate_your_gpu": "surfboard",
    "feeding_the_gpu": None,
    "gemm_and_profilers": "profiles",
    "gpu_efficiency": "surfboard",
    "kernels_compare": "surfboard",
    "paleo_and_ppp": "measured",
}
"""The notebooks, and the folder of the data that each reads."""

CELLS_AT_MOST, LINES_AT_MOST = 30, 32
ANEW = "make notebooks writes it anew"
STRIP = "clear all outputs before you save (in Jupyter: Edit, Clear Outputs of All Cells)"


def _pages():
    spec = importlib.util.spec_from_file_location("paleo_lite_notebooks", FOLDER.parent / "docs" / "notebooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pages = _pages()
read = pages.read
NUMBER = re.compile(r"\d[\d.,]*")


@pytest.fixture(scope="module")
def execute(tmp_path_factory):
    """From a notebook's name and a data folder to the notebook with its outputs."""
    state = tmp_path_factory.mktemp("ipython")
    return lru_cache(None)(lambda name, data: pages.execute(name, data, state))


def text_of(notebook):
    """What a reader sees of the outputs as text; a picture as its SVG."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return "\n".join(
        output.text if output.output_type == "stream" else "\n".join(map(str, output.data.values()))
        for output in outputs
    )


def numbers_of(text):
    """All that reads as one; versions have two points."""
    found = (number.replace(",", "").rstrip(".") for number in NUMBER.findall(text))
    return [float(number) for number in found if number.count(".") < 2]


@pytest.fixture
def on_data(execute):
    """From a notebook's name to its outputs on the real data."""

    def run(name):
        notebook = execute(name, DATA)
        found = text_of(notebook)
        assert "Skipped" not in found
        now, shown = pages.page_of(name, notebook)[0], (pages.PAGES / f"{name}.md").read_text()
        assert NUMBER.sub("#", now) == NUMBER.sub("#", shown), ANEW
        assert numbers_of(now) == pytest.approx(numbers_of(shown), rel=1e-2, abs=0.11), ANEW
        return found

    return run


def test_these_are_all():
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(NEEDS)


@pytest.mark.parametrize("name", NEEDS)
def test_kept_as_it_should_be(name):
    """Without outputs, which would hide changes: they are in the pages of the documentation."""
    notebook = read(name)
    nbformat.validate(notebook)
    assert (FOLDER / f"{name}.ipynb").read_text() == nbformat.writes(notebook) + "\n", "as Jupyter saves it"
    assert len(notebook.cells) <= CELLS_AT_MOST
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert not cell.outputs and cell.execution_count is None, STRIP
            assert len(cell.source.splitlines()) <= LINES_AT_MOST
        assert not re.search(r"(?<![\w.:~])(/(home|root|tmp|usr|work|mnt|data)\b|[A-Z]:\\)", cell.source), cell.source
    # The kernel has the name that every Jupyter installation provides, not that of a personal environment.
    assert notebook.metadata.kernelspec.name == "python3"
    assert notebook.cells[0].source.startswith("# ") and notebook.cells[-1].cell_type == "markdown"


@pytest.mark.parametrize("name", NEEDS)
def test_the_commands_that_it_names_exist(name):
    text = "\n".join(cell.source for cell in read(name).cells if cell.cell_type == "markdown")
    named = re.findall(r"`paleo-lite ([^`]+)`|^    paleo-lite (.+)$", text, re.MULTILINE)
    assert named
    for inline, line in named:
        words, command = shlex.split(inline or line), main
        while isinstance(command, click.Group):
            command = command.get_command(click.Context(command), words.pop(0))
        options = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if re.match(r"--?[a-z]", word)} <= options, words


@pytest.mark.parametrize("name", NEEDS)
def test_its_page_shows_its_cells_and_pictures(name):
    """What a visitor of the repository sees; that the outputs are right is tested where the data are."""
    page = (pages.PAGES / f"{name}.md").read_text()
    assert re.findall(r"^```python\n(.*?)\n```$", page, re.DOTALL | re.MULTILINE) == [
        cell.source for cell in read(name).cells if cell.cell_type == "code"
    ], ANEW
    assert "Skipped" not in re.sub(r"^```python.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE), ANEW
    pictures = re.findall(r"\]\((\w+-\d+\.svg)\)", page)
    assert pictures == sorted(path.name for path in pages.PAGES.glob(f"{name}-*.svg"))


def test_printed_text_is_one_block_however_a_busy_kernel_sends_it():
    from nbformat.v4 import new_code_cell, new_notebook, new_output

    def page(*texts):
        outputs = [new_output("stream", name="stdout", text=text) for text in texts]
        picture = new_output("display_data", data={"text/plain": "shown"})
        cells = [new_code_cell("cell", outputs=[*outputs, picture, *outputs])]
        return pages.page_of("name", new_notebook(cells=cells))

    assert page("one\n", "two\n") == page("one\ntwo\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["gemm_and_profilers", *(pytest.param(name, marks=pytest.mark.thorough) for name in NEEDS if name[:4] != "gemm")],
)
def test_without_data_it_says_so_and_goes_on(name, execute, tmp_path_factory):
    found = text_of(execute(name, tmp_path_factory.getbasetemp() / "no-data"))
    assert ("Skipped: there are no" in found and "Set PALEO_LITE_DATA" in found) == bool(NEEDS[name])
    if name == "gemm_and_profilers":  # what needs no data is there all the same
        assert "5.59 us" in found
    if name == "paleo_and_ppp":
        assert "15,516,752,872" in found


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.needs_data
def test_gpu_efficiency(on_data):
    found = on_data("gpu_efficiency")
    printed = (DATA / "surfboard" / "notebook_outputs" / "gpu_efficiency.txt").read_text()
    table = printed[printed.index("#### [8]") : printed.index("#### [9]")]
    figures = re.findall(r"\d+\.\d{6}", table)
    assert len(figures) == 5 * 8  # five columns; two batch sizes on four numbers of nodes
    assert all(figure in found for figure in figures)
    # SOURCES.md of the data: its text against its own table, and the steady state.
    assert "published text 33.58%, published table 34.81%" in found
    assert "777.2 GFLOP in 0.7568 s" in found
    assert re.search(r"convolutions of a steady step, all counted 23\.9%", found)
    assert found.count("<svg") == 2


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.needs_data
def test_kernels_compare(on_data):
    found = on_data("kernels_compare")
    printed = (DATA / "surfboard" / "notebook_outputs" / "kernels_pyprof.txt").read_text()
    first, second = printed[printed.index("#### [4]") :].split("#### [5]")
    for loader, table in (("dali-cpu-to-gpu", first), ("dali-gpu", second)):
        rows = re.findall(r"^\S+ +\d+\.\d{6} +\d+\.\d{6}$", table, re.MULTILINE)
        assert f"{loader}: {len(rows)} kernels, all as published" in found
    # Read off the published tables: cuDNN took another algorithm in one of the runs.
    assert "wgrad_alg1_engine" in found and f"{0.410776 / 0.655925:.3f}" in found


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.needs_data
def test_gemm_and_profilers(on_data):
    found = on_data("gemm_and_profilers")
    assert f"{2 * 512 * 512 * 64 / 6000e9 * 1e6:.2f} us at peak" in found
    assert f"gain {575.72 / 198.11:.2f} x" in found  # the course's two totals
    assert "| method | launches |" in found  # a page of a command, as a table
    listed = (DATA / "profiles" / "nvprof_summary_text" / "k80_tf2_mnist.txt").read_text()
    assert "10.09%  327.18ms" in listed and "10.09% 327.18ms" in found and "327.2" in found
    assert "nvprof --profile-from-start off --kernels" in found
    # By NVIDIA's counters: 4.91 TB/s of 28 multiprocessors x 32 banks x 4 bytes x 1.582 GHz.
    assert f"of {28 * 32 * 4 * 1.582e9 / 1e12:.2f} TB/s" in found


@pytest.mark.thorough
@pytest.mark.slow
def test_feeding_the_gpu(execute, tmp_path_factory):
    found = text_of(execute("feeding_the_gpu", tmp_path_factory.getbasetemp() / "no-data"))
    for gigabytes_per_s in (30, 40, 5, 6, 6.8, 1):  # the course's table
        assert f"{1e6 / gigabytes_per_s / 3600:.2f}" in found
    assert f"1 PB over SATA 3: {1e15 / 0.6e9 / 604800:.1f} weeks" in found
    loops = re.findall(r"steps: loading (\S+) s, training (\S+) s, (\S+)% at work", found)
    assert len(loops) == 3
    for loading, training, share in loops:
        assert 100 * float(training) / (float(loading) + float(training)) == pytest.approx(float(share), abs=0.1)
    turns, ahead = (float(share) for _, _, share in loops[1:])
    assert turns < ahead


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.needs_data
def test_paleo_and_ppp(on_data, built):
    from torch import nn

    found = on_data("paleo_and_ppp")
    # The printed figures of VGG16 in the course exercise that the notebook cites.
    assert "total 15,516,752,872" in found and "with the pooling 99.00%" in found
    for printed in ("15503M", "1606M", "3922M"):
        assert f"printed {printed}" in found
    # VGG19's convolutions, from torchvision's own modules: 2 FLOPs for each multiply-accumulate, 1 for each bias.
    (vgg19, size), flops = built("vgg19"), 0
    for module in vgg19.features:
        if isinstance(module, nn.Conv2d):
            flops += size * size * (2 * module.weight.numel() + module.out_channels)
        elif isinstance(module, nn.MaxPool2d):
            size //= 2
    assert f"{flops:,} of " in found
    # The K80's data sheet: 8.73 TFLOP/s of both GPUs; VGG16 takes twice 15,470,264,320, and biases and activations.
    board_ms = float(re.search(r"vgg16 +fp32 +1\.776 +([\d.]+)", found)[1])
    assert board_ms == pytest.approx(2 * 15_470_264_320 / 8.73e12 * 1e3, rel=3e-3)
    # MXNet's published 708.43 images/s of VGG16 at batch 32 on a V100 with 15.7 TFLOP/s.
    share = float(re.search(r"measured: ([\d.]+) of the peak by the direct count", found)[1])
    assert share == pytest.approx(708.43 * 2 * 15_470_264_320 / 15.7e12, abs=0.01)
    ppp = float(re.search(r"'v100-sxm2': '([\d.]+)'", found)[1])
    assert ppp > share  # PALEO's counts the memory traffic, too


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.needs_data
def test_calibrate_your_gpu(on_data):
    found = on_data("calibrate_your_gpu")
    with (DATA / "surfboard" / "derived" / "k40m_resnet50_totals.csv").open() as file:
        derived = {row["file"]: row for row in csv.DictReader(file)}
    one = derived["run_0_config_8_2_ib_nvprof_2_resnet50_dali-gpu_32_fp16_fp32_ret_0_0.gzip"]
    for phase, column in (("forward", "fwd_ms"), ("backward", "bwd_ms")):
        ours = float(re.search(rf"batch 32, {phase}: ([\d.]+) ms", found)[1])
        assert ours == pytest.approx(float(one[column]), rel=2e-3)
    errors = dict(re.findall(r"(roofline|other devices|my file) ([\d.]+)%", found))
    assert float(errors["my file"]) < float(errors["other devices"]) < float(errors["roofline"])
