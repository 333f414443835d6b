"""The detectors and the baselines, by name: tensors and graphs in, one score per trace out.

Nothing here reads a file, splits data or trains. A new detector is one file with a `Detector` in it and one line in
`DETECTORS`.
"""

from models.baselines import BASELINES, Baseline
from models.detector import Detector, Outputs
from models.gnn import GnnDetLstm
from models.gvae import GvaeLstm
from models.lstm import LstmSolo

__all__ = ["BASELINES", "DETECTORS", "Baseline", "Detector", "Outputs"]

DETECTORS: dict[str, type[Detector]] = {
    "lstm_solo": LstmSolo,
    "gnn_det_lstm": GnnDetLstm,
    "gvae_lstm": GvaeLstm,
}
