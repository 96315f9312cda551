"""Modules of diffusers as they are traced: a decoder as its ``forward``, and denoisers on whole batches."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Decode(nn.Module):
    """The decoder of an autoencoder, as its ``forward``."""

    def __init__(self, autoencoder: nn.Module) -> None:
        super().__init__()
        self.decoder = autoencoder.decoder
        self.post_quant_conv = getattr(autoencoder, "post_quant_conv", None)

    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        """Return the pictures of latents."""
        if self.post_quant_conv is not None:
            latents = self.post_quant_conv(latents)
        return self.decoder(latents)


def with_plain_positions(module: Any) -> Any:
    """Return the denoiser with positions from 0 instead of around the centre of the picture.

    The tables have the same sizes, but are not put together from two halves, of which one is longer in odd pictures.
    """
    module.pos_embed.scale_rope = False
    return module


class Encode(nn.Module):
    """The encoder of an autoencoder, as its ``forward``."""

    def __init__(self, autoencoder: nn.Module) -> None:
        super().__init__()
        self.encoder = autoencoder.encoder
        self.quant_conv = autoencoder.quant_conv

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        """Return mean and deviation of the latents of a picture."""
        return self.quant_conv(self.encoder(picture))


class DecodeFrames(nn.Module):
    """The temporal decoder of Stable Video Diffusion on all frames of a video at once."""

    def __init__(self, autoencoder: nn.Module) -> None:
        super().__init__()
        self.decoder = autoencoder.decoder.to("meta")

    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        """Return the frames of latents."""
        frames = latents.shape[1]
        is_picture = torch.zeros(1, frames, dtype=latents.dtype, device=latents.device)
        return self.decoder(latents.flatten(0, 1), image_only_indicator=is_picture, num_frames=frames)


class DecodeMochi(nn.Module):
    """The decoder of Mochi's autoencoder on all latent frames, with each norm in one kernel instead of one per eight
    frames, so that the number of layers does not depend on the length of the video."""

    def __init__(self, autoencoder: nn.Module) -> None:
        super().__init__()
        self.decoder = autoencoder.decoder
        for module in self.decoder.modules():
            if hasattr(module, "chunk_size"):
                module.chunk_size = 2**30

    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        """Return the frames of latent frames."""
        return self.decoder(latents)[0]


def on_meta(module: nn.Module) -> nn.Module:
    """Return a module with the parameters on the meta device that its class creates on the CPU."""
    return module.to("meta")


class WholeBatchAttention:
    """Mochi's attention over all tokens of a batch at once.

    Diffusers calls attention once per sample, as it leaves out the padding of each prompt; without padding the work is
    the same.
    """

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        attention_mask: torch.Tensor,
        image_rotary_emb: tuple[torch.Tensor, torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the hidden states of pictures and text after attention over both."""
        pictures = [
            projection(hidden_states).unflatten(2, (attn.heads, -1)) for projection in (attn.to_q, attn.to_k, attn.to_v)
        ]
        text = [
            projection(encoder_hidden_states).unflatten(2, (attn.heads, -1))
            for projection in (attn.add_q_proj, attn.add_k_proj, attn.add_v_proj)
        ]
        pictures[:2] = [
            _rotate_pairs(norm(item), *image_rotary_emb) for norm, item in zip((attn.norm_q, attn.norm_k), pictures)
        ]
        text[:2] = [norm(item) for norm, item in zip((attn.norm_added_q, attn.norm_added_k), text)]
        query, key, value = (
            torch.cat([picture_part.transpose(1, 2), text_part.transpose(1, 2)], dim=2)
            for picture_part, text_part in zip(pictures, text)
        )
        attended = nn.functional.scaled_dot_product_attention(query, key, value)
        attended = attended.transpose(1, 2).flatten(2, 3)
        tokens = hidden_states.shape[1]
        of_pictures, of_text = attended.split_with_sizes((tokens, attended.shape[1] - tokens), dim=1)
        of_pictures = attn.to_out[1](attn.to_out[0](of_pictures))
        return of_pictures, attn.to_add_out(of_text) if hasattr(attn, "to_add_out") else of_text


def _rotate_pairs(hidden: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """Return rotary embeddings of neighbouring elements, computed in fp32."""
    even, odd = hidden[..., 0::2].float(), hidden[..., 1::2].float()
    first = (even * cosines - odd * sines).to(hidden.dtype)
    second = (even * sines + odd * cosines).to(hidden.dtype)
    return torch.stack([first, second], dim=-1).flatten(-2)


def for_whole_batches(module: Any) -> Any:
    """Return Mochi's denoiser with attention over whole batches, and rotary frequencies without autocast, which the
    meta device does not have."""

    def frequencies(table: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        products = torch.einsum("nd,dhf->nhf", positions.float(), table.float())
        return torch.cos(products), torch.sin(products)

    module.rope._create_rope = frequencies
    for block in module.transformer_blocks:
        block.attn1.processor = WholeBatchAttention()
    return module


class DenoiseList(nn.Module):
    """The denoiser of Z-Image, which takes lists of pictures and prompts, on a batch."""

    def __init__(self, denoiser: Any) -> None:
        super().__init__()
        self.denoiser = denoiser
        embedder = denoiser.rope_embedder
        embedder.freqs_cis = [
            torch.empty(length, size // 2, dtype=torch.complex64, device="meta")
            for size, length in zip(embedder.axes_dims, embedder.axes_lens)
        ]

    def forward(self, latents: torch.Tensor, timestep: torch.Tensor, text: torch.Tensor) -> Any:
        """Return the denoised latents."""
        return self.denoiser(list(latents.unbind()), timestep, list(text.unbind()))


class DecodeWan(nn.Module):
    """The decoder of Wan's autoencoder on the first latent frame.

    Later frames are those of a third call, with the inputs of its convolutions that earlier calls have cached; the
    second call differs from all later ones.
    """

    def __init__(self, autoencoder: nn.Module) -> None:
        super().__init__()
        self.decoder = autoencoder.decoder
        self.post_quant_conv = autoencoder.post_quant_conv
        self.convolutions = autoencoder._cached_conv_counts["decoder"]

    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        """Return the frames of the first latent frame."""
        latents = self.post_quant_conv(latents)
        cache: list[Any] = [None] * self.convolutions
        return self.decoder(latents, feat_cache=cache, feat_idx=[0], first_chunk=True)


class DecodeWanLater(DecodeWan):
    """The decoder of Wan's autoencoder on a later latent frame."""

    def forward(self, latents: torch.Tensor, *cache: torch.Tensor) -> torch.Tensor:
        """Return the frames of one latent frame, given the cached inputs of convolutions."""
        return self.decoder(self.post_quant_conv(latents), feat_cache=list(cache), feat_idx=[0])


class DecodeCogVideoX(nn.Module):
    """The decoder of CogVideoX's autoencoder on some latent frames, given what earlier calls have cached."""

    def __init__(self, autoencoder: nn.Module) -> None:
        super().__init__()
        self.decoder = autoencoder.decoder

    def forward(self, latents: torch.Tensor, conv_cache: Any = None) -> torch.Tensor:
        """Return the frames of latent frames."""
        return self.decoder(latents, conv_cache=conv_cache)[0]
