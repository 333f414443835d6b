"""Rows are written by a thread while their source makes the next ones.

What the thread writes is what the source yielded, in its order. Signals reach the main thread
alone, so that none cuts an append in two.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from queue import Queue
from threading import Thread
from typing import ParamSpec

__all__ = ["BackgroundWriter"]

P = ParamSpec("P")


class BackgroundWriter:
    """Has items written by a thread of its own.

    At most `max_items` wait; then the source waits.
    """

    def __init__(self, max_items: int) -> None:
        self.max_items = max_items

    @contextmanager
    def writing(
        self, write: Callable[P, None], held: Callable[[], AbstractContextManager[None]]
    ) -> Iterator[Callable[P, None]]:
        """Give a function that takes the arguments of `write` and has the thread call it.

        At the end of the block, also by an exception, all that was put is written. What `write`
        raises is raised by the next put, or at the end of the block; nothing is written after it.

        `write` is called in the thread, one call after the other; `held` makes a context in which
        signals wait.
        """
        waiting: Queue[Callable[[], None] | None] = Queue(self.max_items)
        errors: list[BaseException] = []

        def run() -> None:
            while (write_one := waiting.get()) is not None:
                if errors:
                    continue  # the source must not wait for ever
                try:
                    write_one()
                except BaseException as error:  # noqa: BLE001 - raised in the main thread
                    errors.append(error)

        def put(*item: P.args, **named: P.kwargs) -> None:
            if errors:
                raise errors[0]
            waiting.put(partial(write, *item, **named))

        # A daemon: what was put is waited for below, and nowhere else.
        thread = Thread(target=run, name="store-writer", daemon=True)
        thread.start()
        raised: BaseException | None = None
        try:
            yield put
        except BaseException as error:
            raised = error
            raise
        finally:
            with held():
                waiting.put(None)
                thread.join()
            if raised is not None and errors and raised is not errors[0]:
                raised.add_note(f"writing had stopped before, found: {errors[0]}")
        if errors:
            raise errors[0]
