"""Configurations of the shipped parts of pipelines: the class of the module and the values that differ from its own.

The values are those of the ``config.json`` in the publisher's repository.
"""

from __future__ import annotations

from typing import Any

Config = tuple[str, dict[str, Any]]

_SDXL_BLOCKS = {
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"), "block_out_channels": (320, 640, 1280),
    "attention_head_dim": (5, 10, 20), "cross_attention_dim": 2048, "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256, "projection_class_embeddings_input_dim": 2816, "use_linear_projection": True,
    "sample_size": 128,
}  # fmt: skip
_SD3 = {
    "sample_size": 128, "patch_size": 2, "in_channels": 16, "out_channels": 16, "attention_head_dim": 64,
    "joint_attention_dim": 4096, "pooled_projection_dim": 2048,
}  # fmt: skip
_VAE = {
    "block_out_channels": (128, 256, 512, 512), "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4, "layers_per_block": 2, "latent_channels": 4,
}  # fmt: skip
_VAE_16 = {**_VAE, "latent_channels": 16, "use_quant_conv": False, "use_post_quant_conv": False}
_SANA = {
    "in_channels": 32, "out_channels": 32, "attention_head_dim": 32, "num_attention_heads": 70,
    "num_cross_attention_heads": 20, "cross_attention_head_dim": 112, "cross_attention_dim": 2240,
    "caption_channels": 2304, "mlp_ratio": 2.5, "sample_size": 32, "patch_size": 1, "qk_norm": "rms_norm_across_heads",
}  # fmt: skip
_DC_AE = {
    "latent_channels": 32, "attention_head_dim": 32,
    "encoder_block_types": ("ResBlock",) * 3 + ("EfficientViTBlock",) * 3,
    "decoder_block_types": ("ResBlock",) * 3 + ("EfficientViTBlock",) * 3,
    "encoder_block_out_channels": (128, 256, 512, 512, 1024, 1024),
    "decoder_block_out_channels": (128, 256, 512, 512, 1024, 1024), "encoder_layers_per_block": (2, 2, 2, 3, 3, 3),
    "decoder_layers_per_block": (3, 3, 3, 3, 3, 3), "encoder_qkv_multiscales": ((), (), (), (5,), (5,), (5,)),
    "decoder_qkv_multiscales": ((), (), (), (5,), (5,), (5,)), "upsample_block_type": "interpolate",
    "downsample_block_type": "conv",
}  # fmt: skip
_SVD_VAE = {
    "block_out_channels": (128, 256, 512, 512), "down_block_types": ("DownEncoderBlock2D",) * 4, "layers_per_block": 2,
    "latent_channels": 4, "sample_size": 768,
}  # fmt: skip
_KLEIN_4B = {
    "num_layers": 5, "num_single_layers": 20, "num_attention_heads": 24, "joint_attention_dim": 7680,
    "guidance_embeds": False,
}  # fmt: skip
_KLEIN_9B = {
    "num_layers": 8, "num_single_layers": 24, "num_attention_heads": 32, "joint_attention_dim": 12288,
    "guidance_embeds": False,
}  # fmt: skip
_WAN_22_VAE = {
    "base_dim": 160, "decoder_base_dim": 256, "z_dim": 48, "is_residual": True, "in_channels": 12, "out_channels": 12,
    "patch_size": 2, "scale_factor_spatial": 16,
}  # fmt: skip
_CLIP_L = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
    "projection_dim": 768, "vocab_size": 49408,
}  # fmt: skip
_T5 = {
    "d_model": 4096, "d_ff": 10240, "d_kv": 64, "num_heads": 64, "num_layers": 24, "vocab_size": 32128,
    "feed_forward_proj": "gated-gelu",
}  # fmt: skip

CONFIGS: dict[str, Config] = {
    # Stable Diffusion
    "sd-1.5-unet": ("UNet2DConditionModel", {"cross_attention_dim": 768, "sample_size": 64}),
    "sd-2.1-unet": (
        "UNet2DConditionModel",
        {
            "cross_attention_dim": 1024, "attention_head_dim": (5, 10, 20, 20), "use_linear_projection": True,
            "sample_size": 96,
        },
    ),
    "sdxl-unet": ("UNet2DConditionModel", {**_SDXL_BLOCKS, "transformer_layers_per_block": (1, 2, 10)}),
    "sdxl-refiner-unet": (
        "UNet2DConditionModel",
        {
            **_SDXL_BLOCKS,
            "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
            "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
            "block_out_channels": (384, 768, 1536, 1536), "attention_head_dim": (6, 12, 24, 24),
            "cross_attention_dim": 1280, "transformer_layers_per_block": 4,
            "projection_class_embeddings_input_dim": 2560,
        },
    ),
    "ssd-1b-unet": (
        "UNet2DConditionModel",
        {
            **_SDXL_BLOCKS, "transformer_layers_per_block": (1, (2, 2), (4, 4)),
            "reverse_transformer_layers_per_block": ((4, 4, 10), (2, 1, 1), 1), "mid_block_type": "UNetMidBlock2D",
        },
    ),
    "sd-3-medium-transformer": (
        "SD3Transformer2DModel",
        {
            **_SD3, "num_layers": 24, "num_attention_heads": 24, "caption_projection_dim": 1536,
            "pos_embed_max_size": 192,
        },
    ),
    "sd-3.5-medium-transformer": (
        "SD3Transformer2DModel",
        {
            **_SD3, "num_layers": 24, "num_attention_heads": 24, "caption_projection_dim": 1536,
            "pos_embed_max_size": 384, "dual_attention_layers": tuple(range(13)), "qk_norm": "rms_norm",
        },
    ),
    "sd-3.5-large-transformer": (
        "SD3Transformer2DModel",
        {
            **_SD3, "num_layers": 38, "num_attention_heads": 38, "caption_projection_dim": 2432,
            "pos_embed_max_size": 192, "qk_norm": "rms_norm",
        },
    ),
    # FLUX.1
    "flux.1-dev-transformer": ("FluxTransformer2DModel", {"guidance_embeds": True}),
    "flux.1-schnell-transformer": ("FluxTransformer2DModel", {"guidance_embeds": False}),
    # Other pictures
    "pixart-sigma-transformer": (
        "PixArtTransformer2DModel",
        {
            "sample_size": 128, "num_layers": 28, "num_attention_heads": 16, "attention_head_dim": 72, "in_channels": 4,
            "out_channels": 8, "cross_attention_dim": 1152, "caption_channels": 4096, "interpolation_scale": 2,
            "use_additional_conditions": False,
        },
    ),
    "sana-1.5-1.6b-transformer": ("SanaTransformer2DModel", {**_SANA, "num_layers": 20}),
    "sana-1.5-4.8b-transformer": ("SanaTransformer2DModel", {**_SANA, "num_layers": 60}),
    "hunyuan-dit-1.2-transformer": (
        "HunyuanDiT2DModel",
        {
            "num_attention_heads": 16, "attention_head_dim": 88, "in_channels": 4, "patch_size": 2,
            "activation_fn": "gelu-approximate", "sample_size": 128, "hidden_size": 1408, "num_layers": 40,
            "mlp_ratio": 4.3637, "learn_sigma": True, "cross_attention_dim": 1024, "cross_attention_dim_t5": 2048,
            "pooled_projection_dim": 1024, "text_len": 77, "text_len_t5": 256, "norm_type": "layer_norm",
            "use_style_cond_and_image_meta_size": False,
        },
    ),
    # Videos
    "wan-2.1-1.3b-transformer": (
        "WanTransformer3DModel",
        {"num_attention_heads": 12, "attention_head_dim": 128, "ffn_dim": 8960, "num_layers": 30},
    ),
    "wan-2.1-14b-transformer": ("WanTransformer3DModel", {}),
    "cogvideox-2b-transformer": ("CogVideoXTransformer3DModel", {}),
    "cogvideox-5b-transformer": (
        "CogVideoXTransformer3DModel",
        {"num_attention_heads": 48, "num_layers": 42, "use_rotary_positional_embeddings": True},
    ),
    "cogvideox-1.5-5b-transformer": (
        "CogVideoXTransformer3DModel:pairs",
        {
            "num_attention_heads": 48, "num_layers": 42, "use_rotary_positional_embeddings": True, "patch_size_t": 2,
            "patch_bias": False, "sample_frames": 81, "sample_height": 96, "sample_width": 170,
        },
    ),
    "wan-2.2-5b-transformer": (
        "WanTransformer3DModel",
        {"num_attention_heads": 24, "ffn_dim": 14336, "num_layers": 30, "in_channels": 48, "out_channels": 48},
    ),
    "hunyuanvideo-transformer": ("HunyuanVideoTransformer3DModel", {}),
    "ltx-video-transformer": ("LTXVideoTransformer3DModel", {}),
    "qwen-image-transformer": ("QwenImageTransformer2DModel", {}),
    "flux.2-dev-transformer": ("Flux2Transformer2DModel", {}),
    "mochi-1-transformer": ("MochiTransformer3DModel", {}),
    "svd-unet": ("UNetSpatioTemporalConditionModel", {"sample_size": 96}),
    "z-image-transformer": ("ZImageTransformer2DModel", {}),
    "flux.2-klein-4b-transformer": ("Flux2Transformer2DModel", _KLEIN_4B),
    "flux.2-klein-9b-transformer": ("Flux2Transformer2DModel", _KLEIN_9B),
    # Decoders, and the encoder of a given picture
    "svd-vae-encoder": ("AutoencoderKLTemporalDecoder:encoder", _SVD_VAE),
    "svd-vae": ("AutoencoderKLTemporalDecoder", _SVD_VAE),
    "mochi-1-vae": ("AutoencoderKLMochi", {}),
    "flux.2-vae": ("AutoencoderKLFlux2", {"latent_channels": 32}),
    "hunyuanvideo-vae": ("AutoencoderKLHunyuanVideo", {}),
    "ltx-video-vae": ("AutoencoderKLLTXVideo", {}),
    "wan-2.2-vae-first": ("AutoencoderKLWan:first", _WAN_22_VAE),
    "wan-2.2-vae-later": ("AutoencoderKLWan:later", _WAN_22_VAE),
    "sd-vae": ("AutoencoderKL", _VAE),
    "sd-3-vae": ("AutoencoderKL", _VAE_16),
    "dc-ae-f32c32": ("AutoencoderDC", _DC_AE),
    "wan-2.1-vae-first": ("AutoencoderKLWan:first", {}),
    "wan-2.1-vae-later": ("AutoencoderKLWan:later", {}),
    "cogvideox-vae-first": ("AutoencoderKLCogVideoX:first", {}),
    "cogvideox-vae-later": ("AutoencoderKLCogVideoX:later", {}),
    # Encoders of text and pictures
    "openclip-h-vision": (
        "CLIPVisionModelWithProjection",
        {
            "hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32, "num_attention_heads": 16,
            "image_size": 224, "patch_size": 14, "projection_dim": 1024, "hidden_act": "gelu",
        },
    ),
    "clip-l": ("CLIPTextModel", {**_CLIP_L, "hidden_act": "quick_gelu"}),
    "openclip-h": (
        "CLIPTextModel",
        {
            **_CLIP_L, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 23,
            "num_attention_heads": 16, "hidden_act": "gelu",
        },
    ),
    "openclip-bigg": (
        "CLIPTextModel",
        {
            **_CLIP_L, "hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32,
            "num_attention_heads": 20, "hidden_act": "gelu",
        },
    ),
    "t5-xxl": ("T5EncoderModel", _T5),
    "mt5-xl": ("MT5EncoderModel", {**_T5, "d_model": 2048, "d_ff": 5120, "num_heads": 32, "vocab_size": 250112}),
    "hunyuan-dit-bert": (
        "BertModel",
        {
            "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
            "vocab_size": 47020,
        },
    ),
    "umt5-xxl": ("UMT5EncoderModel", {**_T5, "vocab_size": 256384}),
}  # fmt: skip
"""Class and configuration by the name of the descriptor."""
