"""Pipelines: their parts against published counts, sizes that are free, and what is asked of them.

Tests: architectures/pipelines/records.py, architectures/pipelines/sampling.py, architectures/pipelines/prepared.py,
architectures/pipelines/tracing.py, architectures/pipelines/export.py, architectures/free_sizes.py.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from asked import predict_any
from paleo_lite.architectures.descriptor import decode_descriptor, read_bounded
from paleo_lite.architectures.free_sizes import Basis, all_monomials, polynomial
from paleo_lite.architectures.pipelines.modules import MODULES
from paleo_lite.architectures.pipelines.records import pipelines
from paleo_lite.architectures.pipelines.sampling import (
    find_pipeline,
    make_sampling,
    parse_image_size,
    part_runs,
    read_part,
)
from paleo_lite.architectures.pipelines.tracing import divide_arguments
from paleo_lite.counting import count
from paleo_lite.errors import BadDescriptor, BadValue, TraceFailed
from paleo_lite.files import shipped_folder

DIFFUSION = shipped_folder("models") / "diffusion"


def denoiser_of(name: str, **asked: object) -> tuple[object, int]:
    """Return the denoiser's runs, and its multiply-accumulates per step."""
    pipeline = pipelines()[name]
    sampling = make_sampling(pipeline, **asked)
    runs = next(part for part in part_runs(pipeline, sampling) if part.part.role == "denoiser")
    per_sample = int(count(runs.network.layers).column("macs", "inference").sum())
    return runs, runs.samples * per_sample * runs.runs // sampling.steps


# Counts of FlopCounterMode of torch on the modules of diffusers, of both samples where there is guidance.
STEPS = {
    ("sd-1.5", "512x512"): 803_273_441_280,
    ("sdxl", "1024x1024"): 6_761_236_398_080,
    ("flux.1-dev", "1024x1024"): 37_192_326_709_248,
}


@pytest.mark.parametrize("name, size", STEPS)
def test_macs_of_a_step_equal_those_of_torch(name: str, size: str) -> None:
    _, macs = denoiser_of(name, image_size=size)
    assert macs == STEPS[name, size]


# Half of the FLOPs of FlopCounterMode of torch on the modules of diffusers 0.42, at 12 x 20 units of the grid, 6 latent
# frames and 77 tokens; 24 x 40 and 96 for Z-Image, 96 x 160 for the U-Net.
PART_MACS = {
    "mochi-1-transformer": 8_650_254_155_776,
    "mochi-1-vae": 4_369_830_543_360,
    "svd-unet": 18_113_584_250_880,
    "svd-vae-encoder": 31_766_952_960,
    "svd-vae": 529_183_733_760,
    "openclip-h-vision": 167_295_139_840,
    "flux.2-klein-4b-transformer": 989_877_049_344,
    "flux.2-klein-9b-transformer": 2_243_217_850_368,
    "flux.2-vae": 72_751_104_000,
    "z-image-transformer": 6_252_190_957_568,
}


@pytest.mark.spread(4)
@pytest.mark.parametrize("name", PART_MACS)
def test_macs_of_a_part_equal_those_of_torch(name: str) -> None:
    sizes = {"h": 12, "w": 20, "f": 6, "t": 77}
    if name.startswith("z-image"):
        sizes = {"h": 24, "w": 40, "f": 1, "t": 96}
    elif name == "svd-unet":
        sizes = {"h": 96, "w": 160, "f": 6}
    work = count(read_part(name, tuple(sizes.items())).layers)
    assert int(work.column("macs", "inference", 1).sum()) == PART_MACS[name]
    assert int(work.column("macs", "inference", 4).sum()) == pytest.approx(4 * PART_MACS[name], rel=1e-4)


# The same of torch 2.13 where sizes are rounded up, as the maps of U-Nets: latents of 8 pixels, height x width, frames.
ODD_MACS = {
    ("sd-1.5-unet", 65, 93, 1): 655_767_484_160,
    ("sd-2.1-unet", 91, 65, 1): 636_994_503_680,
    ("sdxl-unet", 135, 240, 1): 7_447_440_302_080,
    ("sdxl-unet", 128, 127, 1): 3_378_400_133_120,
    ("sdxl-refiner-unet", 135, 101, 1): 3_028_984_906_752,
    ("ssd-1b-unet", 101, 77, 1): 988_905_515_520,
    ("svd-unet", 72, 75, 5): 4_375_803_581_440,
    ("z-image-transformer", 63, 67, 1): 28_793_306_021_888,  # patches of 16 pixels, padded from 4,221 to 4,224
}


@pytest.mark.spread(3)
@pytest.mark.parametrize("name, height, width, frames", ODD_MACS)
def test_macs_of_rounded_sizes_equal_those_of_torch(name: str, height: int, width: int, frames: int) -> None:
    network = read_part(name, (("h", height), ("w", width), ("f", frames), ("t", 64)))
    macs = int(count(network.layers).column("macs", "inference", 1).sum())
    assert macs == ODD_MACS[name, height, width, frames]


# Half of the FLOPs of FlopCounterMode of torch on AutoencoderKLCogVideoX._decode of diffusers 0.42.1, which decodes
# latent frames in pairs, and the first three at once if their number is odd: latents of 16 x 16, latent frames.
COGVIDEOX_DECODER_MACS = {
    2: 1_214_934_679_552,
    3: 1_392_655_728_640,
    4: 2_429_869_359_104,
    12: 7_289_608_077_312,
    13: 7_467_329_126_400,
}


@pytest.mark.spread(2)
@pytest.mark.parametrize("latent_frames", COGVIDEOX_DECODER_MACS)
def test_the_decoder_of_cogvideox_runs_as_in_diffusers(latent_frames: int) -> None:
    prediction = predict_any(
        "cogvideox-2b", gpu="h100-sxm", precision="bf16", frames=4 * latent_frames - 3, image_size=128, steps=1
    )
    decoders = [part for part in prediction.parts if part.part.role == "decoder"]
    macs = sum(part.runs * part.prediction.macs for part in decoders)
    assert macs == COGVIDEOX_DECODER_MACS[latent_frames]
    assert [part.parameters_bytes > 0 for part in decoders] == [True] + [False] * (len(decoders) - 1)


@pytest.mark.parametrize("size", ["1080x1920", "1024x1016", "8x2000"])
def test_stable_diffusion_makes_every_size_that_its_decoder_can(size: str) -> None:
    runs, _ = denoiser_of("sdxl", image_size=size)
    width, height = parse_image_size(size)
    assert runs.network.inputs[0] == (1, 4, height // 8, width // 8)


# Parameters of the checkpoints as their repositories state them (size of the safetensors).
PARAMETERS = {
    "sd-1.5-unet": 859_520_964,
    "sdxl-unet": 2_567_463_684,
    "sdxl-refiner-unet": 2_259_526_660,
    "flux.1-dev-transformer": 11_901_408_320,
    "clip-l": 123_060_480,
    "t5-xxl": 4_762_310_656,
    "svd-unet": 1_524_623_082,
    "openclip-h-vision": 632_076_800,
}


@pytest.mark.spread(3)
@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_those_of_the_checkpoint(name: str) -> None:
    path = DIFFUSION / f"{name}.json.gz"
    network = decode_descriptor(read_bounded(path), path, {"h": 16, "w": 16, "f": 1, "t": 77})
    assert network.parameters == PARAMETERS[name]


@pytest.mark.spread(12)
@pytest.mark.parametrize("name", pipelines())
def test_every_part_of_a_pipeline_is_shipped(name: str) -> None:
    pipeline = pipelines()[name]
    runs = part_runs(pipeline, make_sampling(pipeline))
    roles = [run.part.role for run in runs]
    assert roles[0].endswith("encoder") and "denoiser" in roles and roles[-1] == "decoder"
    denoiser = runs[roles.index("denoiser")]
    assert denoiser.runs == pipeline.steps * (2 if pipeline.guided == "calls" else 1)


def test_a_video_decodes_every_latent_frame() -> None:
    runs = part_runs(pipelines()["wan-2.1-1.3b"], make_sampling(pipelines()["wan-2.1-1.3b"], frames=81))
    decoder = {run.part.descriptor: run.runs for run in runs if run.part.role == "decoder"}
    assert decoder == {"wan-2.1-vae-first": 1, "wan-2.1-vae-later": 20}  # 81 frames are 1 + 20 * 4
    # 32,760 tokens: 21 latent frames of 30 x 52 patches of 2 x 2 latents of 8 x 8 pixels.
    denoiser = next(run for run in runs if run.part.role == "denoiser")
    attention = next(layer for layer in denoiser.network.layers if layer.kind == "attention")
    assert 21 * 30 * 52 in attention.inputs[0]


def test_guidance_doubles_the_samples_unless_there_is_none() -> None:
    guided, _ = denoiser_of("sdxl", images=3)
    unguided, _ = denoiser_of("sdxl", images=3, guidance=1.0)
    distilled, _ = denoiser_of("flux.1-dev", images=3)
    assert (guided.samples, unguided.samples, distilled.samples) == (6, 3, 3)


def test_names_match_in_any_spelling() -> None:
    assert find_pipeline("FLUX.1-dev") is pipelines()["flux.1-dev"] is find_pipeline("flux1dev")
    assert find_pipeline("resnet50") is None


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("stabilityai/stable-diffusion-xl-base-1.0", "sdxl"),
        ("stable-diffusion-xl", "sdxl"),
        ("runwayml/stable-diffusion-v1-5", "sd-1.5"),  # the repository moved to another owner
        ("Stable Diffusion 1.5", "sd-1.5"),
        ("Wan-AI/Wan2.2-T2V-A14B", "wan-2.2-14b"),
    ],
)
def test_a_pipeline_has_the_names_of_its_repository(spelling: str, name: str) -> None:
    assert find_pipeline(spelling) is pipelines()[name]


@pytest.mark.parametrize("size, expected", [(1024, (1024, 1024)), ("1024", (1024, 1024)), ("1024x768", (1024, 768))])
def test_a_size_is_width_by_height(size: int | str, expected: tuple[int, int]) -> None:
    assert parse_image_size(size) == expected


BAD = {
    "sdxl": [
        (
            {"image_size": "1001x1024"},
            "width is a multiple of 8 from 8 to 16,384 pixels, such as 1000 or 1008 (got 1001)",
        ),
        ({"image_size": 20000}, "such as 16376 or 16384 (got 20000)"),
        ({"image_size": 0}, "such as 8 or 16 (got 0)"),
        ({"image_size": "big"}, "--image-size must be pixels"),
        ({"steps": 0}, "--steps must be an integer from 1"),
        ({"images": 0}, "--batch-size must be an integer from 1"),
        ({"frames": 16}, "sdxl makes pictures: remove --frames"),
        ({"guidance": -1}, "--guidance must be a scale from 0"),
        ({"guidance": float("nan")}, "--guidance must be a scale from 0"),
    ],
    "flux.1-dev": [({"image_size": "1920x1080"}, "height is a multiple of 16 from 16 to 16,384 pixels, such as 1072")],
    "wan-2.1-1.3b": [
        ({"frames": 80}, "such as 77 or 81"),
        ({"image_size": "1280x721"}, "makes videos whose height is a multiple of 16"),
    ],
}


@pytest.mark.parametrize("name, asked, message", [(name, *case) for name, cases in BAD.items() for case in cases])
def test_bad_input_gets_one_sentence(name: str, asked: dict[str, object], message: str) -> None:
    with pytest.raises(BadValue, match=re.escape(message)) as caught:
        make_sampling(pipelines()[name], **asked)
    assert "\n" not in str(caught.value)


def test_a_polynomial_is_found_from_its_values() -> None:
    basis = all_monomials({"h": (2, 4), "t": (16, 32, 64)})
    values = [3 * sizes["h"] * sizes["t"] + sizes["t"] ** 2 - sizes["h"] + 7 for sizes in basis.samples]
    assert polynomial(values, basis) == {"ht": 3, "tt": 1, "h": -1, "1": 7}


def test_quotients_are_rounded_up() -> None:
    basis = Basis([{"h": 4}, {"h": 5}, {"h": 7}], ["1", "h", "i"], {"i": ("h", 2)})
    assert polynomial([2, 3, 4], basis) == {"i": 1}


def test_a_size_that_is_no_polynomial_is_refused() -> None:
    with pytest.raises(TraceFailed, match="not a polynomial with whole coefficients"):
        polynomial([3, 4], all_monomials({"h": (2, 5)}))


def test_damaged_descriptors_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "part.json.gz"
    path.write_bytes(b"no gzip file")
    with pytest.raises(BadDescriptor, match="not a gzip file"):
        read_bounded(path)
    whole = (DIFFUSION / "clip-l.json.gz").read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadDescriptor, match="truncated"):
        read_bounded(path)
    data = read_bounded(DIFFUSION / "clip-l.json.gz")
    with pytest.raises(BadDescriptor, match="is not a polynomial"):
        decode_descriptor(data.replace(b'{"t":1}', b'{"z":1}'), path, {"t": 77})
    with pytest.raises(BadValue, match="t is not given"):
        decode_descriptor(data, path)


@pytest.mark.slow
def test_a_part_traced_again_is_the_shipped_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("diffusers")
    from paleo_lite.architectures.pipelines import export

    monkeypatch.setattr(sys, "argv", ["export", str(tmp_path), "sd-vae"])
    export.main()
    shipped = DIFFUSION / "sd-vae.json.gz"
    sizes = {"h": 64, "w": 96}
    traced = decode_descriptor(read_bounded(tmp_path / "sd-vae.json.gz"), tmp_path, sizes)
    assert traced.layers == decode_descriptor(read_bounded(shipped), shipped, sizes).layers


def test_pl_predict_knows_pipelines() -> None:
    prediction = predict_any("sd-1.5", gpu="rtx4090", precision="fp16", steps=20, image_size="512x768", batch_size=2)
    answer = prediction.to_dict()
    assert (answer["width"], answer["height"], answer["images"], answer["steps"]) == (512, 768, 2, 20)


def test_pixart_traces_latents_of_an_eighth_of_the_picture() -> None:
    # PixArt uses the variational autoencoder of Stable Diffusion: 4 channels, an eighth of the sides (Chen et al. 2023)
    calls = MODULES["PixArtTransformer2DModel"]
    inputs = calls.inputs(None, {}, {"h": 32, "w": 48, "t": 120})
    assert inputs["hidden_states"] == (1, 4, 16 * 32 // 8, 16 * 48 // 8)
    assert inputs["encoder_hidden_states"] == (1, 120, 4096)  # the width of T5-XXL


def test_further_arguments_by_position_follow_the_first_named_one():
    # A denoiser is called as forward(hidden_states, timestep, encoder_hidden_states=...).
    given = {"hidden_states": "x", "encoder_hidden_states": "text", "": ["step"]}
    assert divide_arguments(given) == (["x", "step"], {"encoder_hidden_states": "text"})
    assert divide_arguments({"sample": "x"}) == ([], {"sample": "x"})
    assert "" in given
