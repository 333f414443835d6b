"""Which implementation of attention a model runs with: a fast one, or the one that gives maps.

Answers are generated with torch's scaled dot product attention, which never holds a map. Only
the eager implementation gives maps, to the second pass alone. A model that cannot change its
implementation while it is loaded, or whose parts have configurations of their own, keeps the one
that it has.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from transformers import PreTrainedModel

__all__ = ["EAGER", "attention", "can_give_maps", "generation_attention", "implementation_of"]

EAGER = "eager"
FAST = "sdpa"


def implementation_of(model: PreTrainedModel) -> str | None:
    """The implementation that a model has now; None for some models without attention."""
    return model.config._attn_implementation


def can_give_maps(model: PreTrainedModel) -> bool:
    """Whether a model has the implementation that gives maps, or can change to it."""
    return implementation_of(model) == EAGER or _can_change(model)


def generation_attention(model: PreTrainedModel) -> str | None:
    """The implementation to generate answers with: the fast one instead of the eager one."""
    # a model whose attention needs more (a cap on logits, sinks) does not support the fast one
    if implementation_of(model) == EAGER and model._supports_sdpa and _can_change(model):
        return FAST
    return implementation_of(model)


@contextmanager
def attention(model: PreTrainedModel, implementation: str | None) -> Iterator[None]:
    """Run a model with an implementation for a while; then it has its own again."""
    own = implementation_of(model)
    if own is None or implementation is None or implementation == own:
        yield
        return
    model.set_attn_implementation(implementation)
    try:
        yield
    finally:
        model.set_attn_implementation(own)


def _can_change(model: PreTrainedModel) -> bool:
    return not model.config.sub_configs and model._can_set_attn_implementation()
