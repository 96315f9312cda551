"""Vision towers: parameters and matrices of the modules of ``transformers``, products by hand, and the published sizes.

Tests: architectures/families/audio_towers.py, architectures/families/tower.py,
architectures/families/vision_towers.py, architectures/towers.py.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest

from paleo_lite.architectures import find_network
from paleo_lite.architectures.config import Config
from paleo_lite.architectures.families.audio_towers import audio_parameters
from paleo_lite.architectures.families.tower import tower_layers
from paleo_lite.architectures.families.vision_towers import TOWERS, describe_tower
from paleo_lite.architectures.model_config import read_config
from paleo_lite.architectures.network import SequenceOptions
from paleo_lite.counting import count
from paleo_lite.errors import BadDescriptor

QWEN = {
    "depth": 2, "hidden_size": 64, "intermediate_size": 96, "num_heads": 4, "num_position_embeddings": 64,
    "out_hidden_size": 48, "patch_size": 8, "deepstack_visual_indexes": [0],
}  # fmt: skip
SMALL = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "patch_size": 8,
}  # fmt: skip
GLM = {
    "depth": 2, "hidden_size": 64, "num_heads": 4, "patch_size": 8, "image_size": 64, "out_hidden_size": 48,
    "intermediate_size": 96,
}  # fmt: skip
CONFIGS = {
    "glm4v_vision": GLM,
    "glm4v_moe_vision": GLM,
    "qwen3_vl": {**QWEN, "in_channels": 4},
    "qwen3_vl_moe": QWEN,
    "qwen3_omni_moe_vision_encoder": QWEN,
    "qwen3_5": {**QWEN, "deepstack_visual_indexes": []},
    "qwen3_5_moe": {**QWEN, "deepstack_visual_indexes": []},
    "qwen2_vl": {"depth": 2, "embed_dim": 64, "num_heads": 4, "hidden_size": 48, "patch_size": 8},
    "qwen2_5_vl": {"depth": 2, "hidden_size": 64, "num_heads": 4, "out_hidden_size": 48, "patch_size": 8,
                   "intermediate_size": 96, "fullatt_block_indexes": [1], "window_size": 32},
    "kimi_k25_vision": {**SMALL, "pos_emb_height": 8, "pos_emb_width": 8},
    "llama4_vision_model": {
        **SMALL, "image_size": 64, "intermediate_size": 256, "projector_input_dim": 40, "projector_output_dim": 40,
        "vision_output_dim": 40,
    },
    "pixtral": {
        **SMALL, "image_size": 64, "num_channels": 1, "head_dim": 16, "spatial_merge_size": 2,
        "multimodal_projector_bias": False,
    },
    "intern_vit_6b": {**SMALL, "image_size": 64},
    "gemma4_vision": {**SMALL, "num_key_value_heads": 4, "head_dim": 16, "position_embedding_size": 64},
}  # fmt: skip
TEXT = 48
BY_TOTAL = {
    "moonvit", "vision", "internvl_vision", "mllama_vision_model", "dots_ocr",
    "ernie4_5_vl", "ernie4_5_moe_vl", "ernie4_5_vl_moe", "minicpmv", "molmo", "phi3_v", "phi4mm", "step3_vl",
    "multi_modality", "ovis", "ovis2",
}  # fmt: skip
"""Towers of remote code, or with a part left out, which `test_published_configs.py` compares with published totals."""

WHOLE = {
    "CohereLabs/aya-vision-8b": "AyaVisionForConditionalGeneration",
    "LiquidAI/LFM2-VL-1.6B": "Lfm2VlForConditionalGeneration",
    "HuggingFaceTB/SmolVLM2-2.2B-Instruct": "SmolVLMForConditionalGeneration",
    "HuggingFaceM4/Idefics3-8B-Llama3": "Idefics3ForConditionalGeneration",
    "Qwen/Qwen2-Audio-7B-Instruct": "Qwen2AudioForConditionalGeneration",
    "mistralai/Voxtral-Mini-3B-2507": "VoxtralForConditionalGeneration",
    "Qwen/Qwen2.5-Omni-7B": "Qwen2_5OmniThinkerForConditionalGeneration",
    "Qwen/Qwen3-Omni-30B-A3B-Instruct": "Qwen3OmniMoeThinkerForConditionalGeneration",
}
"""Published configs, of which two layers of each part are compared with the class of `transformers`."""

BY_WHOLE = {
    "aya_vision", "lfm2_vl", "smolvlm", "smolvlm_vision", "idefics3", "idefics3_vision", "qwen2_5_omni_vision_encoder",
}  # fmt: skip
"""Towers of these models."""

DEPTHS = ("num_hidden_layers", "depth", "encoder_layers")


def shallow(part):
    """A config with two layers in each of its parts."""
    found = {key: shallow(value) if isinstance(value, dict) else value for key, value in part.items()}
    return {**found, **{key: 2 for key in DEPTHS if key in found}}


def modules_of(model_type, transformers):
    """The modules of a tower and of the projection to the text model."""
    from transformers.models.gemma4.modeling_gemma4 import Gemma4MultimodalEmbedder
    from transformers.models.kimi_k25.modeling_kimi_k25 import Kimi_K25MultimodalProjection
    from transformers.models.llama4.modeling_llama4 import Llama4MultiModalProjector, Llama4VisionModel

    if model_type == "pixtral":
        from transformers.models.mistral3.modeling_mistral3 import Mistral3MultiModalProjector

        more = {"multimodal_projector_bias": False, "text_config": {"model_type": "mistral", "hidden_size": TEXT}}
        vision = {**CONFIGS[model_type], "model_type": model_type}
        whole = transformers.AutoConfig.for_model("mistral3", vision_config=vision, **more)
        return [transformers.AutoModel.from_config(whole.vision_config), Mistral3MultiModalProjector(whole)]
    if model_type == "intern_vit_6b":
        from transformers.models.internvl.modeling_internvl import InternVLMultiModalProjector

        vision = {**CONFIGS[model_type], "attention_bias": True, "image_size": [64, 64], "patch_size": [8, 8]}
        text = {"model_type": "qwen2", "hidden_size": TEXT}
        whole = transformers.AutoConfig.for_model("internvl", vision_config=vision, text_config=text)
        return [transformers.AutoModel.from_config(whole.vision_config), InternVLMultiModalProjector(whole)]
    if model_type.startswith("glm4v"):
        config = transformers.AutoConfig.for_model(model_type, **CONFIGS[model_type])
        return [transformers.AutoModel.from_config(config)]
    name = model_type if model_type in ("kimi_k25_vision", "llama4_vision_model", "gemma4_vision") else None
    fields = dict(CONFIGS[model_type])
    if name is None:
        if model_type == "qwen3_omni_moe_vision_encoder":
            from transformers.models.qwen3_omni_moe import configuration_qwen3_omni_moe, modeling_qwen3_omni_moe

            config = configuration_qwen3_omni_moe.Qwen3OmniMoeVisionEncoderConfig(**fields)
            return [modeling_qwen3_omni_moe.Qwen3OmniMoeVisionEncoder._from_config(config)]
        whole = transformers.AutoConfig.for_model(model_type, vision_config=fields)
        if model_type == "qwen2_vl":
            from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VisionTransformerPretrainedModel as Tower

            return [Tower._from_config(whole.vision_config)]
        if model_type == "qwen2_5_vl":
            from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VisionTransformerPretrainedModel

            return [Qwen2_5_VisionTransformerPretrainedModel._from_config(whole.vision_config)]
        return [transformers.AutoModel.from_config(whole.vision_config)]
    classes = {
        "kimi_k25_vision": ("kimi_k25", Kimi_K25MultimodalProjection),
        "llama4_vision_model": ("llama4", Llama4MultiModalProjector),
        "gemma4_vision": ("gemma4", Gemma4MultimodalEmbedder),
    }
    wrapper, projection = classes[model_type]
    more = {"projection_hidden_size": 64} if wrapper == "kimi_k25" else {}
    text = {"hidden_size": TEXT}
    whole = transformers.AutoConfig.for_model(wrapper, vision_config=fields, text_config=text, **more)
    make = Llama4VisionModel._from_config if wrapper == "llama4" else transformers.AutoModel.from_config
    tower = make(whole.vision_config)
    if wrapper == "gemma4":
        return [tower, projection(whole.vision_config, whole.text_config)]
    return [tower, projection(whole)]


@pytest.mark.slow
@pytest.mark.parametrize("model_type", CONFIGS)
def test_a_tower_has_the_matrices_of_the_module(model_type):
    from paleo_lite.architectures.torch_import import import_torchvision

    torch = import_torchvision("a test").torch
    transformers = pytest.importorskip("transformers", exc_type=ImportError)
    with torch.device("meta"):
        modules = modules_of(model_type, transformers)
    theirs = [tuple(weight.shape) for module in modules for weight in module.parameters()]
    config = Config({**CONFIGS[model_type], "model_type": model_type, "text_hidden_size": TEXT}, "c.json")
    layers, _ = tower_layers(describe_tower(config), "c.json", True)
    parameters = sum(torch.Size(shape).numel() for shape in theirs)
    if model_type == "intern_vit_6b":  # transformers does not pack queries, keys and values; we leave out its scales
        assert sum(layer.parameters for layer in layers) == parameters - 2 * 2 * 64
        return
    if model_type.startswith("glm4v"):  # we leave out the bias of the norm after the projection
        parameters -= TEXT
    assert sum(layer.parameters for layer in layers) == parameters
    ours = sorted(layer.weights[0] for layer in layers if layer.kind in ("linear", "embedding"))
    is_table = model_type in ("kimi_k25_vision", "gemma4_vision")  # with an axis for each dimension of the grid
    flat = [
        (shape[0] * shape[1], shape[2]) if len(shape) == 3 and is_table else (shape[0], torch.Size(shape[1:]).numel())
        for shape in theirs if len(shape) > 1
    ]  # fmt: skip
    assert ours == sorted(flat)


def test_every_tower_is_compared():
    assert set(CONFIGS) | BY_TOTAL | BY_WHOLE == set(TOWERS)


@pytest.mark.spread(3)
@pytest.mark.slow
@pytest.mark.parametrize("repository", WHOLE)
def test_images_and_sound_have_the_parameters_of_the_module(repository):
    from paleo_lite.architectures.torch_import import import_torchvision

    torch = import_torchvision("a test").torch
    transformers = pytest.importorskip("transformers", exc_type=ImportError)
    published = json.loads(Path(__file__).with_name("published_configs.json").read_text(encoding="utf-8"))
    config = shallow(next(entry["config"] for entry in published if entry["repository"] == repository))
    fields = {key: value for key, value in config.get("thinker_config", config).items() if key != "architectures"}
    whole = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
    with torch.device("meta"):
        module = getattr(transformers, WHOLE[repository])._from_config(whole)
    assert network(config).parameters == sum(weight.numel() for weight in module.parameters())


def test_a_tower_multiplies_every_patch_by_every_matrix():
    config = Config({**QWEN, "model_type": "qwen3_vl"}, "c.json")
    tower = describe_tower(config)
    layers, shape = tower_layers(tower, "c.json", True)
    assert (tower.patches, tower.tokens, shape) == (64, 16, (1, 64, 3 * 2 * 8 * 8))
    block = 64 * (4 * 64 * 64 + 2 * 64 * 96) + 2 * 64 * 64 * 64
    merger = 16 * (256 * 256 + 256 * 48)
    assert int(count(layers).column("macs", "inference").sum()) == 64 * 384 * 64 + 2 * block + 2 * merger


def test_windows_of_a_tower_attend_within_themselves():
    config = Config({**CONFIGS["qwen2_5_vl"], "image_size": 128, "model_type": "qwen2_5_vl"}, "c.json")
    layers, _ = tower_layers(describe_tower(config), "c.json", True)
    attention = [layer.inputs[0] for layer in layers if layer.kind == "attention"]
    assert attention == [(1, 4 * 16, 16, 16), (1, 4, 256, 16)]  # 16 windows of 4 x 4 patches, then all 16 x 16


def test_qwen2_vl_has_its_published_parameters():
    """Qwen2-VL-7B-Instruct and Qwen2.5-VL-7B-Instruct: the safetensors metadata."""
    text = {"vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
            "num_attention_heads": 28, "num_key_value_heads": 4}  # fmt: skip
    vision = {"depth": 32, "embed_dim": 1280, "mlp_ratio": 4, "num_heads": 16, "hidden_size": 3584, "patch_size": 14}
    assert network({**text, "model_type": "qwen2_vl", "vision_config": vision}).parameters == 8_291_375_616
    vision = {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 3584,
              "patch_size": 14}  # fmt: skip
    assert network({**text, "model_type": "qwen2_5_vl", "vision_config": vision}).parameters == 8_292_166_656


WRAPPER = {
    "model_type": "qwen3_vl", "architectures": ["Qwen3VLForConditionalGeneration"], "tie_word_embeddings": True,
    "text_config": {
        "model_type": "qwen3_vl_text", "vocab_size": 1000, "hidden_size": 48, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    },
    "vision_config": {**QWEN, "model_type": "qwen3_vl"},
}  # fmt: skip


def network(config, **options):
    image_size = options.pop("image_size", None)
    return read_config(json.dumps(config).encode(), "c.json", image_size, SequenceOptions(**options))


def test_the_thinker_of_an_omni_model_is_read():
    text = {**WRAPPER["text_config"], "model_type": "qwen3_omni_moe_text", "num_experts": 8, "num_experts_per_tok": 2,
            "moe_intermediate_size": 16}  # fmt: skip
    vision = {**QWEN, "model_type": "qwen3_omni_moe_vision_encoder"}
    thinker = {"text_config": text, "vision_config": vision, "audio_config": {"d_model": 8}}
    found = network({"model_type": "qwen3_omni_moe", "thinker_config": thinker, "talker_config": {}})
    assert found.parameters == network({**text, "tie_word_embeddings": False}).parameters + found.tower_parameters
    assert "its audio encoder is not included" in found.notes[0]


def test_a_decode_step_holds_the_tower_in_memory_and_does_not_run_it():
    prompt, step = network(WRAPPER, phase="prefill"), network(WRAPPER, phase="decode")
    assert step.parameters == prompt.parameters
    assert [layer.name for layer in step.layers if layer.name.startswith("visual.")] == ["visual.weights"]
    alone = {**WRAPPER["text_config"], "tie_word_embeddings": True}
    without = network(alone, phase="decode")
    for column in ("flops", "bytes"):
        assert count(step.layers).column(column, "inference").sum() == count(without.layers).column(
            column, "inference").sum()  # fmt: skip
    held = count(step.layers).parameters.sum() - count(without.layers).parameters.sum()
    assert held == step.parameters - without.parameters > 0


def test_the_image_of_a_tower_has_the_requested_size():
    found = network(WRAPPER, image_size=128)
    assert found.inputs[0] == (1, 16 * 16, 384)
    assert "16 x 16 patches, which becomes 64 tokens" in found.notes[0]
    with pytest.raises(BadDescriptor, match="an image of 100 pixels is not a multiple of the patch size, 8"):
        network(WRAPPER, image_size=100)


def test_patches_that_do_not_divide_into_tokens_are_an_error():
    with pytest.raises(BadDescriptor, match="5 x 5 patches does not divide into tokens"):
        network(WRAPPER, image_size=40)


def test_a_step_of_a_network_with_a_tower_is_said_in_whole_words() -> None:
    network = find_network("kimi-k2.5")
    assert network.rebuild is not None
    decode = network.rebuild(SequenceOptions(phase="decode"))
    assert "a kimi_k25, whose vision tower runs with the prompt" in decode.notes


DEFAULTS_OF = {
    "aya_vision": "siglip_vision_model", "lfm2_vl": "siglip2_vision_model",
    "idefics3": "idefics3_vision", "idefics3_vision": "idefics3_vision",
    "smolvlm": "smolvlm_vision", "smolvlm_vision": "smolvlm_vision",
    **{
        name: name
        for name in (
            "ernie4_5_vl_moe", "glm4v_moe_vision", "glm4v_vision", "internvl_vision", "kimi_k25_vision",
            "llama4_vision_model", "mllama_vision_model", "ovis2", "pixtral", "qwen2_5_vl", "qwen2_vl", "qwen3_5",
            "qwen3_5_moe", "qwen3_vl", "qwen3_vl_moe",
        )
    },
}  # fmt: skip
"""Types of `transformers` whose defaults a tower has where its config leaves out a size."""

STATED = {
    "image_size": 384, "patch_size": 16, "out_hidden_size": 48, "vision_output_dim": 80, "vocab_size": 320,
    "projector_hidden_size": 112, "deepstack_visual_indexes": [2, 5],
}  # fmt: skip
"""What every published config states, with sizes that fit all of these towers."""

ALWAYS = {
    "glm4v_vision": ("intermediate_size",), "glm4v_moe_vision": ("intermediate_size",),
    "ernie4_5_vl_moe": ("hidden_size",),
    "kimi_k25_vision": ("hidden_size", "num_attention_heads", "pos_emb_width"),
    "llama4_vision_model": (
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "projector_input_dim",
        "projector_output_dim",
    ),
}  # fmt: skip
"""Further keys without which a config is refused."""


@pytest.mark.slow
@pytest.mark.parametrize("tower", DEFAULTS_OF)
def test_what_a_config_leaves_out_has_the_default_of_transformers(tower):
    from paleo_lite.architectures.torch_import import import_torchvision

    import_torchvision("a test")
    transformers = pytest.importorskip("transformers", exc_type=ImportError)
    config = transformers.AutoConfig.for_model(DEFAULTS_OF[tower])
    config = getattr(config, "vision_config", config).to_dict()
    text_size = config["hidden_size"] if tower == "qwen2_vl" else TEXT  # the tower ends with the text's width
    full = {**config, **{key: value for key, value in STATED.items() if key in config}, "text_hidden_size": text_size}
    full |= {"projector_hidden_size": 112}
    stated = {
        key: full[key] for key in ("model_type", "text_hidden_size", *STATED, *ALWAYS.get(tower, ())) if key in full
    }
    for key in ALWAYS.get(tower, ()):
        with pytest.raises(BadDescriptor, match="is missing: a config of"):
            describe_tower(Config({name: value for name, value in stated.items() if name != key}, "c.json"), tower)
    assert describe_tower(Config(stated, "c.json"), tower) == describe_tower(Config(full, "c.json"), tower)


SOUND = {
    "qwen2_audio_encoder": "Qwen2AudioEncoderConfig", "qwen2_5_omni_audio_encoder": "Qwen2_5OmniAudioEncoderConfig",
    "qwen3_omni_moe_audio_encoder": "Qwen3OmniMoeAudioEncoderConfig", "voxtral_encoder": "VoxtralEncoderConfig",
    "gemma3n_audio": "Gemma3nAudioConfig",
}  # fmt: skip


FAMILY_OF = {
    "qwen2_audio_encoder": "qwen2_audio", "qwen2_5_omni_audio_encoder": "qwen2_5_omni",
    "qwen3_omni_moe_audio_encoder": "qwen3_omni_moe", "voxtral_encoder": "voxtral", "gemma3n_audio": "gemma3n",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("encoder", SOUND)
def test_what_a_config_of_sound_leaves_out_has_the_default_of_transformers(encoder):
    from paleo_lite.architectures.torch_import import import_torchvision

    import_torchvision("a test")
    pytest.importorskip("transformers", exc_type=ImportError)
    family = FAMILY_OF[encoder]
    module = import_module(f"transformers.models.{family}.configuration_{family}")
    given = {"model_type": encoder, "text_hidden_size": TEXT}
    full = {**getattr(module, SOUND[encoder])().to_dict(), **given}
    assert audio_parameters(given, "c.json") == audio_parameters(full, "c.json")
