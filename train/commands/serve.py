"""The command `python -m train serve`: a language model behind OpenAI's API, its answers scored."""

import argparse
import os
import secrets
from collections.abc import Sequence
from dataclasses import fields
from math import ceil
from pathlib import Path

from store.cli.arguments import finite, path, positive, seconds, whole
from store.extras import needs_extra
from store.reports import say
from train.config import Parser
from train.errors import ConfigError, store_errors
from train.serve.limits import Keeping, Limits

__all__ = ["build_parser", "main"]

EXAMPLES = """examples:
  python -m train serve --run runs/traces --model Qwen/Qwen2.5-0.5B-Instruct
  python -m train serve --run guard.safetensors --model models/mine --models saplma --port 8000
  python -m train serve --run guard.safetensors --model models/mine --keep kept.zarr --sample .01
      --keep-above .8 (on the same line)

The address and the token are printed; TRACE_SERVE_TOKEN in the environment chooses the token.
Clients: OpenAI(base_url="http://127.0.0.1:8000/v1", api_key=TOKEN). Answers are greedy unless a
temperature is asked for. SIGTERM ends it after the requests that run or wait.
"""
TOKEN = "TRACE_SERVE_TOKEN"  # noqa: S105 - the name of a variable
LOOPBACK = "127.0.0.1"
GRACE_S = 10  # for the scores of the last answer


def build_parser() -> argparse.ArgumentParser:
    text = "Serve a causal language model as OpenAI's API, with scores of its answers."
    parser = Parser("serve", description=text, epilog=EXAMPLES)
    add = parser.add_argument
    add("--run", type=path, required=True, metavar="PATH", help="a run, or a file exported of one")
    add("--model", required=True, metavar="PATH", help="the model of the run: directory or name")
    add("--models", metavar="NAMES", help="methods to score with (default: detectors and probes)")
    add("--force", action="store_true", help="also score a model other than the run's")
    add("--dtype", choices=("auto", "bf16", "fp16", "fp32"), default="auto", help="of the model")
    add("--device", metavar="NAME", help="of the model (default: the best one)")
    add("--host", default=LOOPBACK, help=f"address to listen on (default: {LOOPBACK})")
    add("--port", type=whole(0, 65535, "a port"), default=0, help="(default: any free one)")
    for name, kind, unit, text in (
        ("tokens", positive, "INT", "of an answer"),
        ("seconds", seconds, "S", "of a request, with waiting"),
        ("requests", positive, "INT", "that run or wait"),
        ("body_bytes", positive, "BYTES", "of a request"),
    ):
        default = getattr(Limits, name)
        flag = f"--max-{name.removesuffix('_bytes')}"
        text += f" (default: {default:g})"
        add(flag, dest=name, type=kind, default=default, metavar=unit, help=text)
    add("--keep", type=path, metavar="STORE", help="keep answers in this store, new or its own")
    add("--sample", type=share, metavar="P", help="probability to keep an answer (default: 0)")
    add("--keep-above", type=share, metavar="P", help="keep answers with a score of at least this")
    return parser


def share(text: str) -> float:
    number = finite(text)
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 1, found {text}")
    return number


def keeping_of(options: argparse.Namespace) -> Keeping | None:
    """What is kept; raises ConfigError if it is not known what, or where."""
    chooses = options.sample is not None or options.keep_above is not None
    if chooses != (options.keep is not None):
        raise ConfigError("--keep: expected with --sample or --keep-above, and these with it")
    if options.keep is None:
        return None
    return Keeping(options.keep, options.sample or 0.0, options.keep_above)


def main(argv: Sequence[str]) -> None:
    """Load run and model, and serve until a signal; mistakes of the user are TrainErrors."""
    options = build_parser().parse_args(argv)
    keeping = keeping_of(options)
    from train.library.guard import load_run

    with store_errors(), needs_extra("serve"):
        from store.sources.huggingface.load import choose_device, load_model
        from store.view.safety import HOSTS
        from store.view.serve import Server, configure, open_listener
        from train.serve.app import build_app
        from train.serve.engine import Engine

    limits = Limits(**{one.name: getattr(options, one.name) for one in fields(Limits)})
    token = os.environ.get(TOKEN) or secrets.token_urlsafe(24)
    guard = load_run(options.run, options.models)
    with store_errors(), open_listener(options.host, options.port) as listener:
        device = choose_device(options.device)
        model, tokenizer = load_model(options.model, options.dtype, device, maps=False)
        engine = Engine(guard, model, tokenizer, limits, keeping, force=options.force)
        name = Path(options.model).resolve().name
        is_local = options.host.strip("[]") in {one.strip("[]") for one in HOSTS}
        hosts = HOSTS if is_local else None
        url = f"http://{options.host}:{listener.getsockname()[1]}/v1"

        def announce() -> None:
            shown = f"in {TOKEN}" if os.environ.get(TOKEN) else token
            say(
                url,
                f"token: {shown}",
                f"model: {name}, scored by {', '.join(guard.names)}",
                sep="\n",
                flush=True,
            )

        config = configure(build_app(engine, name, token, hosts))
        config.timeout_graceful_shutdown = ceil(limits.seconds) + GRACE_S
        Server(config, announce, engine.close).run(sockets=[listener])
