"""Ten mistakes that a split-KV kernel can hold, each as one edit of a source file of `attention/`.

The faulty code exists as text here and in a temporary folder, where `plant` writes a copy of the package with one edit
made. That folder's parent goes first on PYTHONPATH: whoever then imports `evalsuite_attention` gets the copy, and the
digest in its receipts names it. Nothing of this is installed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

PACKAGE = "evalsuite_attention"
SOURCE = Path(__file__).resolve().parent.parent / "attention"
RIGHT = "right kernel"
Platform = Literal["cpu", "gpu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One replacement of text in one file; `old` must be there exactly once."""

    file: str
    old: str
    new: str

    def apply(self, text: str) -> str:
        """Return `text` with the edit made. Raises ValueError unless `old` occurs exactly once."""
        found = text.count(self.old)
        if found != 1:
            raise ValueError(f"{self.file}: {self.old!r} occurs {found} times, expected once; mend selftest/faults.py")
        return text.replace(self.old, self.new)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One mistake, for the path that serves on a CPU and the one that serves on a GPU."""

    name: str
    cpu: Edit
    gpu: Edit

    def edit(self, platform: Platform) -> Edit:
        """Return the edit for a platform."""
        return self.cpu if platform == "cpu" else self.gpu


def plant(fault: Fault | None, platform: Platform, parent: Path) -> Path:
    """Write the package with `fault` in it, or as it is, into a new folder under `parent`; return that folder."""
    folder = parent / PACKAGE
    folder.mkdir(parents=True)
    for source in SOURCE.glob("*.py"):
        (folder / source.name).write_bytes(source.read_bytes())
    if fault is not None:
        edit = fault.edit(platform)
        file = folder / edit.file
        file.write_text(edit.apply(file.read_text(encoding="utf-8")), encoding="utf-8")
    return folder


_MERGE = "    return (torch.softmax(lse, dim=-1).unsqueeze(-2) @ partial).squeeze(-2)\n"
_LENGTH = "            seq_len,\n            scale=self.scale,\n"
_GPU_SCORE = 'b_score = tl.where((o_start + o_tile < seq_len)[None, :], b_score, -float("inf"))'

FAULTS = (
    Fault(
        name="partials averaged",
        cpu=Edit(file="reference.py", old=_MERGE, new="    return partial.mean(dim=-2)\n"),
        gpu=Edit(
            file="decode.py",
            old="b_weight = tl.exp2((b_lse - tl.max(b_lse, 0)) * LOG2_E)",
            new="b_weight = tl.where(m_segment, 1.0, 0.0)",
        ),
    ),
    Fault(
        name="LSE in base 2",
        cpu=Edit(
            file="reference.py",
            old="return partial.transpose(1, 2).flatten(0, 1), lse.flatten(0, 1)",
            new="return partial.transpose(1, 2).flatten(0, 1), lse.flatten(0, 1) * 1.4426950408889634",
        ),
        gpu=Edit(file="decode.py", old="(b_max + tl.log2(b_sum)) * LN_2", new="b_max + tl.log2(b_sum)"),
    ),
    Fault(
        name="last segment dropped",
        cpu=Edit(
            file="reference.py",
            old=_MERGE,
            new="    return (torch.softmax(lse[:, :-1], dim=-1).unsqueeze(-2) @ partial[:, :-1]).squeeze(-2)\n",
        ),
        gpu=Edit(
            file="decode.py",
            old="m_segment = o_segment * tl.cdiv(tiles, segments) < tiles",
            new="m_segment = (o_segment == 0) | ((o_segment + 1) * tl.cdiv(tiles, segments) < tiles)",
        ),
    ),
    Fault(
        name="short last segment taken as full",
        cpu=Edit(file="reference.py", old="(0, padding), value=-torch.inf)", new="(0, padding))"),
        gpu=Edit(
            file="decode.py",
            old="(o_start + o_tile < seq_len)[None, :]",
            new="(o_start + o_tile < end_tile * TILE)[None, :]",
        ),
    ),
    Fault(
        name="length off by one",
        cpu=Edit(file="cpu.py", old=_LENGTH, new=_LENGTH.replace("seq_len", "max(seq_len - 1, 1)")),
        gpu=Edit(file="decode.py", old="last = seq_len - 1", new="last = tl.maximum(seq_len - 2, 0)"),
    ),
    Fault(
        name="stale page",
        cpu=Edit(
            file="reference.py",
            old="used = page_table[: -(-seq_len // pages.shape[1])].long()\n",
            new=(
                "used = page_table[: -(-seq_len // pages.shape[1])].long().clone()\n"
                "    if len(used) > 2:\n"
                "        used[-2] = used[-3]\n"
            ),
        ),
        gpu=Edit(
            file="decode.py",
            old="o_page = b_page.to(tl.int64)",
            new=(
                "o_entry = (o_start + o_read) // PAGE_SIZE\n"
                "        o_entry -= ((o_entry > 0) & (o_entry == last // PAGE_SIZE - 1)).to(tl.int32)\n"
                "        o_page = tl.load(table_ptr + o_entry).to(tl.int64)"
            ),
        ),
    ),
    Fault(
        name="one KV head for all groups",
        cpu=Edit(
            file="reference.py",
            old="return pages.permute(2, 0, 1, 3)[:, used]",
            new="return pages[:, :, :1].expand_as(pages).permute(2, 0, 1, 3)[:, used]",
        ),
        gpu=Edit(
            file="decode.py",
            old=(
                "key_head_ptr = key_ptr + i_head.to(tl.int64) * stride_key_head\n"
                "    value_head_ptr = value_ptr + i_head.to(tl.int64) * stride_value_head"
            ),
            new="key_head_ptr = key_ptr\n    value_head_ptr = value_ptr",
        ),
    ),
    Fault(
        name="wrong scale",
        # the last dimension of vLLM's CPU cache holds a key and a value: twice the head size
        cpu=Edit(file="cpu.py", old="scale=self.scale,", new="scale=kv_cache.shape[-1] ** -0.5,"),
        # exp2 of scores that were not multiplied by log2(e)
        gpu=Edit(file="decode.py", old="* (scale * LOG2_E)", new="* scale"),
    ),
    Fault(
        name="tail of the last page not masked",
        cpu=Edit(file="cpu.py", old=_LENGTH, new=_LENGTH.replace("seq_len", "pages * kv_cache.shape[2]")),
        gpu=Edit(
            file="decode.py",
            old="seq_len = tl.load(seq_len_ptr)\n    last = seq_len - 1",
            new="seq_len = tl.cdiv(tl.load(seq_len_ptr), PAGE_SIZE) * PAGE_SIZE\n    last = seq_len - 1",
        ),
    ),
    Fault(
        name="sums in bfloat16",
        cpu=Edit(
            file="reference.py",
            old="    partial = weights.transpose(1, 2) @ values  #",
            new=(
                "    rows = values.unsqueeze(2).bfloat16()\n"
                "    partial = torch.zeros_like(weights.transpose(1, 2)[..., :1] * rows[..., 0, :]).bfloat16()\n"
                "    for position, row in enumerate(rows.unbind(3)):\n"
                "        partial += weights.transpose(1, 2)[..., position, None].bfloat16() * row\n"
                "    partial = partial.to(dtype)  #"
            ),
        ),
        gpu=Edit(
            file="decode.py",
            old="        b_out = tl.dot(b_weight, b_value, b_out * b_shrink[:, None])\n",
            new=(
                "        b_out *= b_shrink[:, None]\n"
                "        for i_read in range(TILE):\n"
                "            b_left = tl.sum(tl.where((o_tile == i_read)[None, :], b_weight.to(tl.float32), 0.0), 1)\n"
                "            b_right = tl.sum(tl.where((o_tile == i_read)[:, None], b_value.to(tl.float32), 0.0), 0)\n"
                "            b_out = (b_out + b_left[:, None] * b_right[None, :]).to(tl.bfloat16).to(tl.float32)\n"
            ),
        ),
    ),
)


def by_name() -> Mapping[str, Fault]:
    """Return the faults by name."""
    return {fault.name: fault for fault in FAULTS}
