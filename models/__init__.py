"""The detectors, the probes and the baselines, by name: tensors and graphs in, one score per trace out.

Nothing here reads a file, splits data or trains; the names are those that results and checkpoints use. Three
registries, by what has to be done:

- `DETECTORS` are trained step by step. A new one is one file with a `Detector` in it and one line here.
- `PROBES` are methods of the literature whose features need no training but that of a logistic regression. A new one
  is one file with a `Probe` in it (the columns it reads, a function from a packed batch to features) and one line here.
- `BASELINES` are probes too, of what every result has to be compared with; they share one file.
"""

from models.baselines import BASELINES
from models.detector import Detector, Outputs
from models.gnn import GnnDetLstm
from models.gvae import GvaeLstm
from models.lapeigvals import LAPEIGVALS
from models.llm_check import LLM_CHECK
from models.logreg_pca import LOGREG_PCA
from models.lookback_lens import LOOKBACK_LENS
from models.lstm import LstmSolo
from models.probe import FittedProbe, Probe
from models.saplma import Saplma

__all__ = ["BASELINES", "DETECTORS", "PROBES", "Detector", "FittedProbe", "Outputs", "Probe"]

DETECTORS: dict[str, type[Detector]] = {
    "lstm_solo": LstmSolo,
    "gnn_det_lstm": GnnDetLstm,
    "gvae_lstm": GvaeLstm,
    "saplma": Saplma,
}

PROBES: dict[str, Probe] = {
    "logreg_pca": LOGREG_PCA,
    "lapeigvals": LAPEIGVALS,
    "llm_check": LLM_CHECK,
    "lookback_lens": LOOKBACK_LENS,
}
