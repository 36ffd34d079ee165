"""The shape of attention as users write it, and the bytes it takes. No heavy import."""

import re
from dataclasses import dataclass

from evalsuite.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """What fixes the work of one attention layer, but for the context."""

    q_heads: int
    kv_heads: int
    head_size: int
    page_size: int  # KV positions per page
    dtype: str = "bfloat16"  # of queries, keys and values, as PyTorch names it

    @property
    def heads(self) -> str:
        """As `--heads` takes it."""
        return f"{self.q_heads}/{self.kv_heads}/{self.head_size}"

    @property
    def element_bytes(self) -> int:
        return 4 if self.dtype == "float32" else 2

    def kv_bytes(self, context: int) -> int:
        """Return the bytes of keys and values that one layer reads for one token with `context` KV positions."""
        return 2 * context * self.kv_heads * self.head_size * self.element_bytes

    def pages(self, context: int) -> int:
        """Return how many pages hold `context` KV positions."""
        return -(-context // self.page_size)


def parse_heads(option: str, text: str) -> tuple[int, int, int]:
    """Return query heads, KV heads and head size of text like 24/4/256. Raises UserError that names the option."""
    found = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})/([0-9]{1,6})", text)
    q_heads, kv_heads, head_size = map(int, found.groups()) if found else (0, 0, 0)
    if min(q_heads, kv_heads, head_size) < 1:
        raise UserError(f"{option} {text} is no shape; expected HEADS/KV_HEADS/HEAD_SIZE, such as 24/4/256")
    if q_heads % kv_heads:
        raise UserError(
            f"{option} {text}: {q_heads} query heads cannot share {kv_heads} KV heads evenly; "
            "expected a multiple, such as 24/4/256"
        )
    if head_size % 8:
        raise UserError(
            f"{option} {text}: head size {head_size} suits no attention kernel; expected a multiple of 8, such as 256"
        )
    return q_heads, kv_heads, head_size
