"""Settings that cannot be used, or contradict each other, are refused before anything is read."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, fields, replace
from typing import NamedTuple

from models import DETECTORS, PROBES, REFERENCES
from models.options import Option
from store.cli.arguments import program
from store.errors import SchemaError, closest
from store.traces.layers import parse_layers
from train.config.settings import Config, flag_of, option, violated_rule
from train.errors import ConfigError
from train.outside import ALL, LOADED, NOTHING
from train.records import WrongValueError, from_json, read_value

__all__ = [
    "Reading",
    "check_config",
    "config_of_run",
    "make_config",
    "own_options",
    "own_setting",
    "scoring_settings",
    "settings_of",
]

# columns of scores.csv; --models all; the tokens' scores of `probe` would be those of token_probe
RESERVED = ("trace_id", "side", "split", "label", "question_id", "all", "probe")


def make_config(given: Mapping[str, object], in_file: Mapping[str, object] | None = None) -> Config:
    """The settings that are given, else those in a file, else the defaults; all checked.

    Among them are the options of methods from outside that are loaded, as `method_option`.
    """
    settings = {**(in_file or {}), **given}
    if given.get("models") is not None:
        if given.get("only") is not None:
            raise ConfigError("--only: not allowed with --models; name all methods in one of them")
        settings.pop("only", None)  # of the file
    own: dict[str, dict[str, object]] = {}
    for name, method in LOADED.items():
        flags = {str(one): own_setting(name, one).name for one in method.options}
        own[name] = {one: settings.pop(flag) for one, flag in flags.items() if flag in settings}
    config = read_config(settings, "settings")
    records = {}
    for name, method in LOADED.items():
        recorded = config.outside.get(name, NOTHING).options
        options = own_options(name, method.options, recorded | own[name])
        records[name] = replace(method.origin, options=options)
    config = replace(config, outside=records)
    check_config(config)
    check_names(config)
    return config


class Reading(NamedTuple):
    """How traces that are scored are read, and where: the settings of a run that may change."""

    batch_size: int | None = None  # None: that of the run
    num_workers: int = 0
    force_cpu: bool = False


def scoring_settings(config: Config, reading: Reading) -> Config:
    """The settings of a run, to score with; raises ConfigError for a wrong one."""
    config = replace(
        config,
        num_workers=reading.num_workers,
        force_cpu=reading.force_cpu,
        batch_size=config.batch_size if reading.batch_size is None else reading.batch_size,
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
    for message in contradictions(config):
        raise ConfigError(message)


def contradictions(config: Config) -> Iterator[str]:
    """What is not allowed with another setting, or is without it, or leaves nothing to find."""
    if config.margin >= 0.5:
        yield (
            "--margin: expected less than 0.5, by which a perfect AUROC is above chance, found "
            f"{config.margin:g}"
        )
    if config.hold_out is not None and config.split is None:
        yield "--hold-out: expected --split COLUMN with it, found none"
    if config.hold_out is not None and (config.split or "").lower().endswith(".csv"):
        yield f"--hold-out: expected a column as --split, found {config.split!r:.80}"
    if config.near_duplicates is not None and not config.join_questions:
        yield "--near-duplicates: not allowed with --no-join-questions"
    if config.split is not None and config.splits > 1:
        yield (
            f"--splits: expected 1 with --split, which gives a single split, found {config.splits}"
        )
    if config.replacement and config.weights is None:
        yield "--replacement: expected --weights with it, found none"
    if config.follow and config.schedule != "constant":
        yield (
            "--follow: expected --schedule constant with it, as nobody knows how many steps there "
            f"will be, found {config.schedule}"
        )
    for name in ("on_top_of", "max_traces"):
        if config.follow and getattr(config, name) is not None:
            yield f"--follow: not allowed with {flag_of(name)}"
    if not config.detectors:
        yield (
            "expected a detector to train, found all of them switched off; name one with --models, "
            "or leave out what switches it off"
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


def settings_of(content: Mapping[str, object], where: str) -> dict[str, object]:
    """Settings from JSON, checked: an object of them, or with them as "config"."""
    settings = content.get("config", content)
    if not isinstance(settings, dict):
        raise ConfigError(
            f"{where}: expected an object of settings, found {type(settings).__name__}"
        )
    read_config(settings, where)
    return settings


def read_config(settings: Mapping[str, object], where: str) -> Config:
    """Settings from JSON; raises ConfigError for one that there is not, or of another type."""
    for name in settings:
        if name not in Config.__annotations__:
            raise ConfigError(
                f"{where}: expected settings of {program('train')} --help, found {name!r:.80}"
            )
    try:
        return from_json(Config, settings)
    except WrongValueError as error:
        raise ConfigError(f"{where}: expected {error!s:.200}") from error


def config_of_run(content: Mapping[str, object], where: str) -> Config:
    """The settings that a run recorded: all that there are, or the run is of another version."""
    settings = settings_of(content, where)
    missing = next((name for name in Config.__annotations__ if name not in settings), None)
    if missing is not None:
        raise ConfigError(
            f"{where}: expected all settings of a run of this version, found none of "
            f"{flag_of(missing)}; train again"
        )
    return read_config(settings, where)


def own_setting(name: str, one: Option) -> Field:
    """An option that a method has for itself, as a setting: the flag --NAME-OPTION."""
    default = one.default if one.kind is not bool else "on" if one.default else "off"
    text = f"{one.help} (default: {default})".replace("%", "%%")  # argparse formats it
    setting = option(text, one.default, (one.low, one.high), choices=one.choices)
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
        flag = flag_of(setting.name)
        kind = one.kind if one.default is not None else one.kind | None
        try:
            values[key] = read_value(kind, given.get(key, one.default), flag)
        except WrongValueError as error:
            raise ConfigError(f"expected {error!s:.200}") from error
        expected = violated_rule(setting, values[key])
        if expected is not None:
            raise ConfigError(f"{flag}: expected {expected}, found {values[key]!r:.80}")
    return values
