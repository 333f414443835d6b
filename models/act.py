"""Detectors over activations as images (ACT-ViT, Bar-Shalom et al., arXiv:2510.00296).

The states of all layers and tokens of a trace are an image, layers x tokens, with d channels; it is
pooled to one size by the maximum, each cell is projected to a few channels, and a network of vision
reads it: a convolution (`act_conv`) or a transformer over patches (`act_vit`).

Default from the paper: the maximum as pooling, 8 layers, one linear projection of a cell.
Differences from the paper:

- 32 tokens, not 100 (`image_tokens`), in a third of the memory: on an earlier example of answers to
  sums, with traces of 6 to 16 tokens, 100 tokens gained act_conv no more than its interval.
- Channels are standardised, by layer: a few channels of language models are a hundred times as
  large as the others, and the states grow from layer to layer.
- One language model, one projection: a store holds traces of one.
- Small networks of one width, with dropout: a store has thousands of traces, not millions. There is
  none in the transformer, which else learns less in the few epochs of a run.
- All tokens of the trace, the question's as well; shorter traces are stretched, not padded.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.detector import Detector, Outputs
from models.images import augment, pool_images
from models.standardise import Standardise
from store import Batch

__all__ = ["ActConv", "ActVit", "ImageDetector"]

PATCH = (2, 4)  # layers x tokens
N_BLOCKS = 2
N_HEADS = 4


class ImageDetector(Detector):
    """Base of the detectors of pooled images; a subclass gives the network behind the projection.

    An image has no more layers than L of `hidden_states`; `image_width` is the number C of channels
    of a cell after the projection. `channels_last` is the memory format of the network's images:
    "on", "off", or "auto", which is on with CUDA. Images are augmented in training only.

    Shapes
    ------
    batch["hidden_states"] (n_tokens, L, d), packed -> features (B, H, W, C) -> logits (B,)
    """

    columns = ("hidden_states",)
    options = (
        "image_layers",
        "image_tokens",
        "image_width",
        "dropout",
        "channels_last",
        "augment",
        "augment_strength",
    )

    def __init__(
        self,
        hidden_size: int,
        n_layers: int,
        image_layers: int = 8,
        image_tokens: int = 32,
        image_width: int = 64,
        dropout: float = 0.3,
        channels_last: str = "auto",
        augment: str = "none",
        augment_strength: float = 0.1,
    ) -> None:
        super().__init__()
        self.size = min(image_layers, n_layers), image_tokens
        self.channels_last = channels_last
        self.augment = augment
        self.augment_strength = augment_strength
        # of each layer and channel, over the cells of a layer
        self.standardise = Standardise(self.size[0], 1, hidden_size, fills=False)
        self.project = nn.Sequential(
            nn.Linear(hidden_size, image_width), nn.LayerNorm(image_width, elementwise_affine=False)
        )
        self.patches = Patches(self.size, image_width)
        self.network = self.build_network(image_width, dropout)
        self.head = nn.Sequential(
            nn.LayerNorm(2 * image_width), nn.Dropout(dropout), nn.Linear(2 * image_width, 1)
        )

    def build_network(self, width: int, dropout: float) -> nn.Module:
        """The network from patches (B, C, h, w) to the same shape."""
        raise NotImplementedError

    def reduce(self, batch: Batch) -> Tensor:
        """The pooled images (B, H, W, d) float16."""
        values, offsets = batch.ragged("hidden_states")
        return pool_images(values, offsets, *self.size)

    def encode(self, batch: Batch) -> Tensor:
        images = self.reduced(batch)
        features = self.run(self.project_cells, images)  # (B, H, W, C)
        if self.training:
            features = augment(features, self.augment, self.augment_strength)
        return features

    def project_cells(self, images: Tensor) -> Tensor:
        return self.project(self.standardise(images))

    def classify(self, features: Tensor) -> Outputs:
        return Outputs(self.run(self.read_images, features))

    def read_images(self, features: Tensor) -> Tensor:
        """Logits (B,) of features (B, H, W, C)."""
        images = features.movedim(3, 1)  # whose memory has the channels last
        is_last = self.channels_last == "on" or (self.channels_last == "auto" and images.is_cuda)
        if not is_last:
            images = images.contiguous()
        patches = self.network(self.patches(images)).flatten(2)  # (B, C, h w)
        ends = torch.cat([patches.mean(2), patches.amax(2)], dim=1)  # (B, 2C)
        return self.head(ends).squeeze(1)


class Patches(nn.Module):
    """Cells with their place added, then 2 layers x 4 tokens of them to one patch.

    Sides that are no multiple of a patch are filled up with 0.

    Shapes
    ------
    (B, C, H, W) float32 -> (B, C, h, w) float32
    """

    def __init__(self, size: tuple[int, int], width: int) -> None:
        super().__init__()
        n_layers, n_tokens = size
        sides = min(PATCH[0], n_layers), min(PATCH[1], n_tokens)
        self.missing = -n_layers % sides[0], -n_tokens % sides[1]
        self.layer = nn.Parameter(0.02 * torch.randn(1, width, n_layers, 1))
        self.token = nn.Parameter(0.02 * torch.randn(1, width, 1, n_tokens))
        self.merge = nn.Conv2d(width, width, sides, stride=sides)

    def forward(self, images: Tensor) -> Tensor:
        placed = images + self.layer + self.token
        n_layers, n_tokens = self.missing
        return self.merge(F.pad(placed, (0, n_tokens, 0, n_layers)))


class ResidualConv(nn.Module):
    """x + conv 3x3 (GELU (norm (x))), each channel normalised with all others of its trace.

    Shapes
    ------
    (B, C, h, w) float32 -> the same
    """

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.change = nn.Sequential(
            nn.GroupNorm(1, width),
            nn.GELU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.Dropout(dropout),
        )

    def forward(self, images: Tensor) -> Tensor:
        return images + self.change(images)


class ActConv(ImageDetector):
    """Two residual convolutions over the patches; their mean and maximum to a logit."""

    def build_network(self, width: int, dropout: float) -> nn.Module:
        return nn.Sequential(*(ResidualConv(width, dropout) for _ in range(N_BLOCKS)))


class PatchTransformer(nn.Module):
    """A transformer encoder over the patches, each a token; norms come first, as in ViT.

    Shapes
    ------
    (B, C, h, w) float32 -> the same
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        n_heads = math.gcd(N_HEADS, width)
        layer = nn.TransformerEncoderLayer(
            width, n_heads, 2 * width, 0.0, F.gelu, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, N_BLOCKS, enable_nested_tensor=False)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.encoder(images.flatten(2).transpose(1, 2))  # (B, h w, C)
        return tokens.transpose(1, 2).unflatten(2, images.shape[2:])


class ActVit(ImageDetector):
    """Two layers of a transformer over the patches; their mean and maximum to a logit."""

    def build_network(self, width: int, dropout: float) -> nn.Module:
        return PatchTransformer(width)
