"""What reading values that contradict each other raises, and how a message says it."""

from store.errors import StoreError, is_no_damage

__all__ = ["DAMAGE", "one_line"]

DAMAGE = (  # what NumPy, torch and Python raise for values that contradict each other
    StoreError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    RuntimeError,
)


def one_line(error: Exception) -> str:
    """Return what is wrong, from an error of this package or a library; raises MemoryError."""
    if is_no_damage(error):
        raise MemoryError(*error.args) from error
    message = " ".join(str(error).split())[:300]
    if isinstance(error, StoreError):
        return message
    return f"expected a whole trace, found {type(error).__name__}: {message}"
