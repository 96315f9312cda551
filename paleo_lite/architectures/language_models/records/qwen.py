"""Qwen3-VL, Qwen3-Omni and Qwen3.5: the text parts of vision-language models."""

from __future__ import annotations

import msgspec

from ...blocks.traits import DeltaNet
from ...keys import Integer, record
from ..family import BIASED, QWEN_SPARSE, Family, heads_of
from .hybrids import DELTA_NET, QWEN_ATTENDS, QWEN_ATTENTION
from .hybrids import FAMILIES as HYBRIDS

_VISION_LANGUAGE = {"root": "model.language_model"}

_QWEN3_5 = Family(
    name="Qwen3_5", model_class="Qwen3_5TextModel", longest=32768,
    block={"norm": "rms_one_plus"}, decoder={"norm": "rms_one_plus"},
    attends=QWEN_ATTENDS,
    attention=QWEN_ATTENTION,
    other=record(DeltaNet, DELTA_NET, has_packed_projections=False),
    next_token="mtp_num_hidden_layers", unread=(("attn_output_gate", (True,)),),
)  # fmt: skip

FAMILIES: dict[str, Family] = {
    "qwen3_vl_text": Family(
        name="Qwen3VL", head_class="Qwen3VLForConditionalGeneration", model_class="Qwen3VLTextModel", longest=128000,
        decoder=_VISION_LANGUAGE,
        attention={
            **BIASED, "query_key_norm": "per_head", **heads_of(128),
        },
    ),
    "qwen3_vl_moe_text": Family(
        name="Qwen3VLMoe", head_class="Qwen3VLMoeForConditionalGeneration", model_class="Qwen3VLMoeTextModel",
        longest=128000, decoder=_VISION_LANGUAGE, attention={**BIASED, "query_key_norm": "per_head"},
        experts={"count": Integer("num_experts num_local_experts"), "is_normalised": True},
        sparse=QWEN_SPARSE,
    ),
    "qwen3_5_text": _QWEN3_5,
    "qwen3_5_moe_text": msgspec.structs.replace(
        _QWEN3_5, name="Qwen3_5Moe", model_class="Qwen3_5MoeTextModel",
        experts={"has_shared_gate": True, "is_normalised": True}, shared=HYBRIDS["qwen3_next"].shared,
    ),
}  # fmt: skip

FAMILIES["qwen3_omni_moe_text"] = msgspec.structs.replace(
    FAMILIES["qwen3_vl_moe_text"], name="Qwen3OmniMoe", head_class="Qwen3OmniMoeThinkerForConditionalGeneration",
    model_class="Qwen3OmniMoeThinkerTextModel", longest=32768, decoder={"root": "thinker.model"},
)  # fmt: skip
