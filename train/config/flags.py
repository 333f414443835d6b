"""Names of settings as flags of the command line."""

__all__ = [
    "SWITCHES",
    "flag_of",
    "off_flag",
]

# detector -> its field
SWITCHES = {"lstm_solo": "run_lstm", "gnn_det_lstm": "run_gnn_det", "gvae_lstm": "run_gvae"}


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def off_flag(detector: str) -> str:
    """The flag that leaves a detector out."""
    return flag_of(f"no_{SWITCHES[detector]}") if detector in SWITCHES else "--models"
