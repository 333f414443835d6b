"""Settings that cannot be used, or contradict each other, are refused before anything is read."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field, asdict, fields, replace
from typing import Any

from models import DETECTORS, PROBES, REFERENCES
from models.options import Option
from store.cli.arguments import program
from store.errors import SchemaError, closest
from store.traces.layers import parse_layers
from train.config.settings import OUTSIDE, Config, flag_of, is_of_type, option, violated_rule
from train.errors import ConfigError
from train.outside.methods import ALL, LOADED
from train.outside.records import Record, record_of

__all__ = [
    "check_config",
    "check_names",
    "check_registered",
    "check_split",
    "make_config",
    "own_options",
    "own_setting",
    "scoring_settings",
    "settings_of",
    "settings_of_run",
]

# columns of scores.csv; --models all; the tokens' scores of `probe` would be those of token_probe
RESERVED = ("trace_id", "side", "split", "label", "question_id", "all", "probe")


def make_config(given: Mapping[str, Any], in_file: Mapping[str, Any] | None = None) -> Config:
    """The settings that are given, else those in a file, else the defaults; all checked.

    Among them are the options of methods from outside that are loaded, as `method_option`.
    """
    settings = {**(in_file or {}), **given}
    if given.get("models") is not None:
        if given.get("only") is not None:
            raise ConfigError("--only: not allowed with --models; name all methods in one of them")
        settings.pop("only", None)  # of the file
    recorded = settings.pop(OUTSIDE, None)
    records = {}
    for name, method in LOADED.items():
        values = dict(record_of(recorded, name).options)
        for one in method.options:
            flag = own_setting(name, one).name
            if flag in settings:
                values[str(one)] = settings.pop(flag)
        options = own_options(name, method.options, values)
        records[name] = asdict(Record(method.place, method.sha256, method.package, options))
    config = Config(**settings_of(settings, "settings"), outside=records or None)
    check_config(config)
    check_names(config)
    return config


def scoring_settings(
    config: Config,
    *,
    batch_size: int | None = None,
    num_workers: int = 0,
    force_cpu: bool = False,
) -> Config:
    """The settings of a run, with others to read and to score; raises ConfigError for a wrong one.

    Without a `batch_size` it is that of the run.
    """
    config = replace(
        config,
        num_workers=num_workers,
        force_cpu=force_cpu,
        batch_size=config.batch_size if batch_size is None else batch_size,
        amp=True,
        precision="32",
        follow=False,
    )
    check_config(config)
    return config


def check_config(config: Config) -> None:
    """Raise ConfigError for a value out of range or form, or a run with nothing to train."""
    for setting in fields(config):
        value = getattr(config, setting.name)
        expected = violated_rule(setting, value)
        if expected is not None:
            raise ConfigError(
                f"{flag_of(setting.name)}: expected {expected}, found {value!r:.80}; "
                f"see {program('train')} --help"
            )
    if config.layers is not None:
        try:
            parse_layers(config.layers)
        except SchemaError as error:
            raise ConfigError(f"--{error}") from error
    if not config.amp and config.precision not in ("auto", "32"):
        raise ConfigError(
            f"--no-amp: expected --precision 32 or none with it, found {config.precision!r}"
        )
    check_split(config)
    check_stores(config)
    if not config.detectors:
        raise ConfigError(
            "expected a detector to train, found all of them switched off; name one with --models, "
            "or leave out what switches it off"
        )


def check_stores(config: Config) -> None:
    """Raise ConfigError for settings of several or growing stores that contradict each other."""
    if config.replacement and config.weights is None:
        raise ConfigError("--replacement: expected --weights with it, found none")
    if not config.follow:
        return
    if config.schedule != "constant":
        raise ConfigError(
            "--follow: expected --schedule constant with it, as nobody knows how many steps there "
            f"will be, found {config.schedule}"
        )
    for name in ("on_top_of", "max_traces"):
        if getattr(config, name) is not None:
            raise ConfigError(f"--follow: not allowed with {flag_of(name)}")


def check_split(config: Config) -> None:
    """Raise ConfigError for settings of the split that contradict each other."""
    if config.hold_out is not None and config.split is None:
        raise ConfigError("--hold-out: expected --split COLUMN with it, found none")
    if config.hold_out is not None and (config.split or "").lower().endswith(".csv"):
        raise ConfigError(f"--hold-out: expected a column as --split, found {config.split!r:.80}")
    if config.near_duplicates is not None and not config.join_questions:
        raise ConfigError("--near-duplicates: not allowed with --no-join-questions")
    if config.split is not None and config.splits > 1:
        raise ConfigError(
            f"--splits: expected 1 with --split, which gives a single split, found {config.splits}"
        )


def check_names(config: Config) -> None:
    """Raise ConfigError for an unknown detector, probe or baseline."""
    methods = [*DETECTORS, *PROBES]
    check_registered([*methods, *REFERENCES])
    others = [name for name in config.detectors if name not in LOADED]
    if config.only is not None:
        for name in config.detectors:
            _check_name("--only: there is no", name, [*methods, *REFERENCES])
    elif others != [ALL]:
        for name in config.detectors:
            _check_name("--models: there is no", name, methods, ", or all")
    if config.on_top_of is not None:
        known = list(REFERENCES)
        _check_name("--on-top-of: there is no baseline", config.on_top_of, known)


def _check_name(problem: str, name: str, known: Iterable[str], more: str = "") -> None:
    if name not in known:
        raise ConfigError(
            f"{problem} {name!r:.80}{closest(name, known)}; choose from {', '.join(known)}{more}"
        )


def check_registered(names: Sequence[str]) -> None:
    """Raise ConfigError for ambiguous names of methods: of results, files and columns."""
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"two methods are called {name!r:.80}: register yours under a name of its own"
            )
        if name in RESERVED or not re.fullmatch(r"[A-Za-z]\w{0,50}", name, re.ASCII):
            raise ConfigError(
                f"a method is called {name!r:.80}: register it under a name of letters, digits and "
                f"'_' that is none of {', '.join(RESERVED)}"
            )


def settings_of(content: object, where: str) -> dict[str, Any]:
    """Check names and types of settings from JSON: an object of them, or with them as "config"."""
    settings = content.get("config", content) if isinstance(content, dict) else content
    if not isinstance(settings, dict):
        raise ConfigError(
            f"{where}: expected an object of settings, found {type(settings).__name__}"
        )
    types = Config.__annotations__  # texts, such as "float | None"
    for name, value in settings.items():
        if name not in types:
            raise ConfigError(
                f"{where}: expected settings of {program('train')} --help, found {name!r:.80}"
            )
        if not is_of_type(value, types[name]):
            raise ConfigError(f"{where}: {name}: expected {types[name]}, found {value!r:.80}")
    return settings


def settings_of_run(content: object, where: str) -> dict[str, Any]:
    """The settings that a run recorded: all that there are, or the run is of another version."""
    settings = settings_of(content, where)
    missing = next((name for name in Config.__annotations__ if name not in settings), None)
    if missing is not None:
        raise ConfigError(
            f"{where}: expected all settings of a run of this version, found none of "
            f"{flag_of(missing)}; train again"
        )
    return settings


def own_setting(name: str, one: Option) -> Field:
    """An option that a method has for itself, as a setting: the flag --NAME-OPTION."""
    default = one.default if one.kind is not bool else "on" if one.default else "off"
    text = f"{one.help} (default: {default})".replace("%", "%%")  # argparse formats it
    setting = option(text, one.default, one.low, one.high, choices=one.choices)
    setting.name = f"{name}_{one}"
    setting.type = one.kind.__name__ + (" | None" if one.default is None else "")
    if setting.name in Config.__dataclass_fields__:
        raise ConfigError(
            f"{name}: its option {str(one)!r} would have the flag of another setting, "
            f"{flag_of(setting.name)}; rename one"
        )
    return setting


def own_options(
    name: str, options: Iterable[str], given: Mapping[str, object]
) -> dict[str, object]:
    """Values of the `Option`s of a method: as they are given, else their defaults.

    Raises ConfigError for a value of another type, out of its range, or of an option that the
    method does not have.
    """
    own = {str(one): one for one in options if isinstance(one, Option)}
    for key in given:
        if key not in own:
            raise ConfigError(
                f"{name}: expected options of {', '.join(own) or 'none'}, found {key!r:.80}"
            )
    values: dict[str, object] = {}
    for key, one in own.items():
        setting = own_setting(name, one)
        value = given.get(key, one.default)
        kinds = str(setting.type)
        expected = violated_rule(setting, value) if is_of_type(value, kinds) else kinds
        if expected is not None:
            raise ConfigError(f"{flag_of(setting.name)}: expected {expected}, found {value!r:.80}")
        values[key] = value
    return values
