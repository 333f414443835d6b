"""The ids of traces: the k-th trace of question Q is `Q`, `Q#2`, `Q#3`, ..."""

from collections import Counter

__all__ = ["MAX_ID_BYTES", "TraceNumbers", "number_trace"]

MAX_ID_BYTES = 1000  # of a question; a store takes 1024 of a trace, and "#2" may follow


class TraceNumbers:
    """Gives the traces of questions their ids, in order; an id that is taken is skipped."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()  # traces of each question
        self._given: set[str] = set()

    def __contains__(self, trace_id: str) -> bool:
        """Whether an id was given."""
        return trace_id in self._given

    def add(self, question_id: str, trace_id: str) -> None:
        """Note an id that was given before."""
        self.seen[question_id] += 1
        self._given.add(trace_id)

    def next_of(self, question_id: str) -> str:
        """The id that the next trace of a question gets, which is not given yet."""
        k = self.seen[question_id] + 1
        while (trace_id := number_trace(question_id, k)) in self._given:
            k += 1
        return trace_id

    def give(self, question_id: str) -> str:
        """Give the id of the next trace of a question."""
        trace_id = self.next_of(question_id)
        self.add(question_id, trace_id)
        return trace_id


def number_trace(question_id: str, k: int) -> str:
    """The id of the k-th trace of a question, k from 1: `Q`, `Q#2`, `Q#3`, ..."""
    return f"{question_id}#{k}" if k > 1 else question_id
