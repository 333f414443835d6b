"""The detectors, the probes and the baselines by name.

The names are those that results and checkpoints use. Four registries, and `REFERENCES`, the last
two of them together, which every run fits beside what it trains:

- `DETECTORS` are trained step by step. A new one is one file with a `Detector` in it and one line
  here.
- `PROBES` are methods of the literature whose features need no training but that of a logistic
  regression. A new one is one file with a `Probe` in it (the columns it reads, a function from a
  packed batch to features) and one line here.
- `BASELINES` are probes that every result has to be compared with; they share one file.
- `CONTROLS` are probes that see no states of the answer and no probabilities: what they predict, a
  detector may have learned from the question, the length, the texts or the fields alone. Each says
  what it `sees`.

A method is imported on first access: `--help` and the check of a command line need the names alone,
without the seconds that torch takes. Methods of other packages and
of files that a command names are entered here by `train/outside`.
"""

from __future__ import annotations

from collections import ChainMap, UserDict
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from models.detector import Detector
    from models.probe import Probe
    from models.question_only import TextProbe
    from models.tables import TableProbe

__all__ = [
    "BASELINES",
    "CONTROLS",
    "DETECTORS",
    "METHODS",
    "PROBES",
    "REFERENCES",
    "Registry",
    "find",
]

T = TypeVar("T")


class Registry(UserDict[str, T]):
    """Name -> method.

    `places` gives "module:attribute", imported on first access, or the method itself.

    Examples
    --------
    >>> registry = Registry({"saplma": "models.saplma:Saplma"})
    >>> registry["mine"] = MyDetector  # doctest: +SKIP
    """

    data: dict[str, Any]  # "module:attribute" until the first access

    def __init__(self, places: Mapping[str, Any]) -> None:
        super().__init__(places)

    def __getitem__(self, name: str) -> T:
        method = self.data[name]
        if isinstance(method, str):
            module, _, attribute = method.partition(":")
            method = getattr(import_module(module), attribute)
            self.data[name] = method
        return method


DETECTORS: Registry[type[Detector]] = Registry(
    {
        "lstm_solo": "models.lstm:LstmSolo",
        "gnn_det_lstm": "models.gnn:GnnDetLstm",
        "gvae_lstm": "models.gvae:GvaeLstm",
        "saplma": "models.saplma:Saplma",
        "token_probe": "models.token_probe:TokenProbe",
        "drift": "models.drift:Drift",
        "halunet": "models.halunet:HaluNet",
        "clap": "models.clap:Clap",
        "layer_transitions": "models.layer_transitions:LayerTransitions",
        "mind": "models.mind:Mind",
        "icr_probe": "models.icr_probe:IcrProbe",
        "token_sequence": "models.token_sequence:TokenSequence",
        "state_sequence": "models.state_sequence:StateSequence",
        "los_net": "models.los_net:LosNet",
        "charm": "models.charm:Charm",
        "charm_edges": "models.charm:CharmEdges",
        "act_conv": "models.act:ActConv",
        "act_vit": "models.act:ActVit",
    }
)

PROBES: Registry[Probe] = Registry(
    {
        "logreg_pca": "models.logreg_pca:LOGREG_PCA",
        "lapeigvals": "models.lapeigvals:LAPEIGVALS",
        "attn_logdet": "models.attn_logdet:ATTN_LOGDET",
        "sink_probe": "models.sink_probe:SINK_PROBE",
        "llm_check": "models.llm_check:LLM_CHECK",
        "llm_check_hidden": "models.llm_check:LLM_CHECK_HIDDEN",
        "llm_check_logit": "models.llm_check:LLM_CHECK_LOGIT",
        "lookback_lens": "models.lookback_lens:LOOKBACK_LENS",
        "lookback_context": "models.lookback_lens:LOOKBACK_CONTEXT",
        "aggtruth_sum": "models.aggtruth:AGGTRUTH_SUM",
        "aggtruth_cosine": "models.aggtruth:AGGTRUTH_COSINE",
        "aggtruth_entropy": "models.aggtruth:AGGTRUTH_ENTROPY",
        "aggtruth_js": "models.aggtruth:AGGTRUTH_JS",
        "attention_entropy": "models.attention_entropy:ATTENTION_ENTROPY",
        "rauq": "models.rauq:RAUQ",
        "trilens": "models.trilens:TRILENS",
        "coe": "models.coe:COE",
        "mahalanobis": "models.mahalanobis:MAHALANOBIS",
        "relative_mahalanobis": "models.mahalanobis:RELATIVE_MAHALANOBIS",
        "haloscope": "models.haloscope:HALOSCOPE",
        "haloscope_projection": "models.haloscope:HALOSCOPE_PROJECTION",
        "semantic_entropy_probe": "models.semantic_entropy_probe:SEMANTIC_ENTROPY_PROBE",
        "semantic_entropy_probe_prompt": (
            "models.semantic_entropy_probe:SEMANTIC_ENTROPY_PROBE_PROMPT"
        ),
        "eigenscore": "models.samples:EIGENSCORE",
        "lexical_similarity": "models.samples:LEXICAL_SIMILARITY",
        "semantic_entropy": "models.samples:SEMANTIC_ENTROPY",
        "semantic_entropy_discrete": "models.samples:SEMANTIC_ENTROPY_DISCRETE",
        "selfcheck_nli": "models.samples:SELFCHECK_NLI",
    }
)

BASELINES: Registry[Probe] = Registry(
    {
        "majority": "models.baselines:MAJORITY",
        "mean_logprob": "models.baselines:MEAN_LOGPROB",
        "perplexity": "models.baselines:PERPLEXITY",
        "sum_logprob": "models.baselines:SUM_LOGPROB",
        "min_logprob": "models.baselines:MIN_LOGPROB",
        "first_logprob": "models.baselines:FIRST_LOGPROB",
        "margin": "models.baselines:MARGIN",
        "entropy": "models.baselines:ENTROPY",
        "max_entropy": "models.baselines:MAX_ENTROPY",
        "uncertainty": "models.baselines:UNCERTAINTY",
        "logreg_first": "models.baselines:LOGREG_FIRST",
        "logreg_best": "models.baselines:LOGREG_BEST",
        "logreg_mean": "models.baselines:LOGREG_MEAN",
    }
)

CONTROLS: Registry[Probe | TextProbe | TableProbe] = Registry(
    {
        "question_only": "models.question_only:QUESTION_ONLY",
        "prompt_state": "models.baselines:PROMPT_STATE",
        "answer_length": "models.baselines:ANSWER_LENGTH",
        "answer_text": "models.question_only:ANSWER_TEXT",
        "question_answer": "models.question_only:QUESTION_ANSWER",
        "answer_context": "models.answer_context:ANSWER_CONTEXT",
        "metadata": "models.metadata:METADATA",
    }
)

REFERENCES: ChainMap[str, Any] = ChainMap(CONTROLS, BASELINES)
METHODS: ChainMap[str, Any] = ChainMap(DETECTORS, PROBES, REFERENCES)


def find(name: str) -> type[Detector] | Probe | TextProbe | TableProbe:
    """Find a detector, a probe, a baseline or a control by its name; raises KeyError."""
    return METHODS[name]
