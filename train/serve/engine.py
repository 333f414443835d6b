"""One thread that generates and scores, and the requests that wait for it."""

import asyncio
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TextStreamer

from store.reports import say
from store.sources.huggingface.generation import end_ids
from store.sources.huggingface.prompts import Chat, ChatTextError, PlainText
from train.library.guard import Guard
from train.library.watch import Watch
from train.serve.keep import Keep
from train.serve.limits import Keeping, Limits
from train.serve.requests import Asked, Refused

__all__ = ["Answer", "Engine", "Job"]

Scores = dict[str, float]  # method -> probability of a hallucination
Verdict = dict[str, dict[str, float | bool | None]]  # method -> score, threshold, decision


@dataclass(frozen=True)
class Answer:
    """The end of an answer."""

    hallucination: Verdict
    n_prompt: int  # tokens
    n_answer: int
    finish_reason: str  # empty of one that was given


@dataclass
class Job:
    """A request that runs or waits; `events` has pieces of text, then an Answer or a Refused."""

    asked: Asked
    deadline: float  # of `time.monotonic`
    loop: asyncio.AbstractEventLoop
    events: asyncio.Queue[str | Answer | Refused] = field(default_factory=asyncio.Queue)
    is_gone: threading.Event = field(default_factory=threading.Event)  # nobody waits any more

    def send(self, event: str | Answer | Refused) -> None:
        """From the thread that generates to the one that answers."""
        with suppress(RuntimeError):  # the server was ended by force
            self.loop.call_soon_threadsafe(self.events.put_nowait, event)


class Engine:
    """Answers requests one after the other.

    Raises what `Watch` and `Keep` raise.
    """

    def __init__(
        self,
        guard: Guard,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        limits: Limits,
        keeping: Keeping | None = None,
        *,
        force: bool = False,
    ) -> None:
        parts = guard.score, guard.names, guard.models, model, tokenizer
        self.watch = Watch(*parts, force=force, keeps_rows=keeping is not None)
        self.keep = None if keeping is None else Keep(keeping, self.watch)
        self.thresholds = guard.thresholds
        self.model: Any = model
        self.tokenizer = tokenizer
        self.limits = limits
        self.counts: Any = Counter()  # by metric: how many, or seconds
        self.n_open = 0
        self._thread = ThreadPoolExecutor(1, "generate")
        self._plain = PlainText(tokenizer)
        self._is_closed = threading.Event()

    def close(self) -> None:
        """End what still runs, and write what is to be kept."""
        self._is_closed.set()
        self._thread.shutdown()
        if self.keep is not None:
            self.keep.close()

    def submit(self, asked: Asked) -> Job:
        """Have a request wait for its turn; raises Refused if too many do."""
        if self.n_open >= self.limits.requests:
            raise Refused(429, f"{self.n_open} requests run or wait already; try again later")
        loop = asyncio.get_running_loop()
        job = Job(asked, time.monotonic() + self.limits.seconds, loop)
        self.n_open += 1
        loop.run_in_executor(self._thread, self._run, job).add_done_callback(self._close)
        return job

    def _close(self, _: object) -> None:
        self.n_open -= 1

    def _run(self, job: Job) -> None:
        try:
            self._check_wanted(job)
            if time.monotonic() > job.deadline:
                raise Refused(503, f"no turn within {self.limits.seconds:g} s; try again later")
            job.send(self._answer(job))
        except Refused as refused:
            job.send(refused)
        except _Gone:
            self.counts["cancelled_total"] += 1
        except Exception as error:  # noqa: BLE001 - the next may be fine; its text is private
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{place.filename}:{place.lineno}"
            say(f"serve: a request failed: {type(error).__name__}, {where}", file=sys.stderr)
            job.send(Refused(500, f"the request failed: {type(error).__name__}"))

    def _check_wanted(self, job: Job) -> None:
        if job.is_gone.is_set() or self._is_closed.is_set():
            raise _Gone

    def _answer(self, job: Job) -> Answer:
        """Generate an answer, or take the one that is given, and score it."""
        asked = job.asked
        prompt, given = self._encoded(asked)
        longest = self._longest(asked, len(prompt), len(given))
        self.counts["prompt_tokens_total"] += len(prompt)
        if asked.answer is None:
            scores, n_answer, finish = self._speak(job, prompt, longest)
        else:
            (scores,) = self.watch.score_given([prompt], [given])
            n_answer, finish = len(given), ""
        if self.keep is not None:
            (row,) = self.watch.rows
            self.counts["kept_total"] += self.keep.consider(asked, row, scores, finish)
        return Answer(self._verdict(scores), len(prompt), n_answer, finish)

    def _speak(self, job: Job, prompt: list[int], longest: int) -> tuple[Scores, int, str]:
        """Generate, piece by piece: the scores, how many tokens there are, and why it ended."""
        asked = job.asked
        if asked.seed is not None:
            torch.manual_seed(asked.seed)
        settings = {name: one for name, one in asked.decoding.describe().items() if name != "seed"}
        ends = end_ids(self.model)
        if ends:
            settings["pad_token_id"] = min(ends)
        inputs = torch.tensor([prompt], device=self.model.device)
        start = time.monotonic()
        with self.watch:
            out = self.model.generate(
                input_ids=inputs,
                attention_mask=torch.ones_like(inputs),
                max_new_tokens=longest,
                max_time=job.deadline - start,
                streamer=_Pieces(self.tokenizer, job, self._check_wanted, ends),
                **settings,
            )
        n_answer = out.shape[1] - len(prompt)
        self.counts["answer_tokens_total"] += n_answer
        self.counts["answer_seconds_total"] += time.monotonic() - start
        self.watch.tokens.clear()
        return self.watch.scores.pop(), n_answer, "stop" if int(out[0, -1]) in ends else "length"

    def _verdict(self, scores: Scores) -> Verdict:
        """What the methods say of an answer."""
        verdict: Verdict = {}
        for name, score in scores.items():
            threshold = self.thresholds.get(name)
            decision = None if threshold is None else score >= threshold
            verdict[name] = {"score": score, "threshold": threshold, "decision": decision}
            self.counts[f'hallucinations_total{{method="{name}"}}'] += bool(decision)
        return verdict

    def _encoded(self, asked: Asked) -> tuple[list[int], list[int]]:
        """The ids of a prompt, and of the answer if it is given, as extraction has them."""
        is_plain = isinstance(asked.prompt, str)
        if not is_plain and self.tokenizer.chat_template is None:
            text = "messages: the model has no chat template; ask /v1/completions with a prompt"
            raise Refused(400, text, "messages")
        given = asked.answer or None
        try:
            if isinstance(asked.prompt, str):
                tokens, n, _ = self._plain.encode(asked.prompt, given)
            else:
                chat = Chat(self.tokenizer, asked.prompt)
                tokens, n, _ = chat.encode(chat.prompt(asked.prompt, given), given)
        except ChatTextError as error:
            text = "messages: the chat template leaves out the text of a turn; leave that turn out"
            raise Refused(400, text, "messages") from error
        except Exception as error:  # templates and tokenizers raise nothing narrower
            text = "the tokenizer or its chat template cannot take these texts or roles"
            raise Refused(400, text, "prompt" if is_plain else "messages") from error
        if not n:
            raise Refused(400, "prompt: expected one with tokens, found none", "prompt")
        if asked.answer is not None and len(tokens.ids) == n:
            raise Refused(400, "answer: expected one with tokens, found none", "answer")
        return tokens.ids[:n], tokens.ids[n:]

    def _longest(self, asked: Asked, n_prompt: int, n_given: int) -> int:
        """Tokens of the longest answer; raises Refused where there is too little room."""
        wanted = asked.max_tokens
        if wanted is not None and wanted > self.limits.tokens:
            text = f"max_tokens: expected at most {self.limits.tokens}, found {wanted}"
            raise Refused(400, text, "max_tokens")
        positions = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        room = (positions or sys.maxsize) - n_prompt
        needed = n_given or wanted or 1
        if room < needed:
            raise Refused(
                400,
                f"the model takes {positions} tokens, found {n_prompt} of the prompt and "
                f"{needed} of the answer",
                "messages" if isinstance(asked.prompt, list) else "prompt",
            )
        return wanted or min(room, self.limits.tokens)


class _Gone(Exception):
    """The client has left."""


class _Pieces(TextStreamer):
    """Hands on what is written, by words, as long as it is wanted.

    It is the text that is scored: before the first token of `ends`, unless the answer begins so.
    """

    def __init__(
        self, tokenizer: Any, job: Job, check: Callable[[Job], None], ends: set[int]
    ) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self.job = job
        self.check = check
        self.ends = ends
        self.n_put = 0

    def put(self, value: Any) -> None:
        """The prompt, then each token."""
        self.check(self.job)
        if self.n_put < 2 or int(value) not in self.ends:
            super().put(value)
        self.n_put += 1

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        """A piece; the last one may be empty."""
        if text:
            self.job.send(text)
