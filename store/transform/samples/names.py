"""Names of the scores of samples, and what each is made from; takes no torch."""

__all__ = ["NEEDS", "NLI", "STATES", "TEXTS"]

STATES = "hs_last"
TEXTS = ("question", "answer")
NEEDS: dict[str, tuple[str, ...]] = {  # column -> what it is made from, beside the question's id
    "eigenscore": (STATES,),
    "lexical_similarity": ("answer",),
    "semantic_entropy": (*TEXTS, "logprob", "prompt_len", "answer_len"),
    "semantic_entropy_discrete": TEXTS,
    "selfcheck_nli": ("answer",),
}
NLI = ("semantic_entropy", "semantic_entropy_discrete", "selfcheck_nli")  # ask a classifier
