"""What a kernel is to `evalsuite replay`: a name, and a function that binds it to a case or says why it cannot."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evalsuite_performance.layer_shape import LayerShape
from evalsuite_performance.paged import Case

if TYPE_CHECKING:
    import torch


class Refused(Exception):
    """A kernel cannot serve a case; the message is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A kernel bound to a case."""

    launch: Callable[[int], None]  # writes the case's output of this layer
    parts: int | None = None  # into how many splits or segments it cuts the history; None if it does not say


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A kernel by name, not yet bound."""

    name: str
    build: Callable[[Case], Built]
    held: bool = True
    """Whether a large error makes it wrong; False for what shows only what rounding costs."""
    note: str | None = None
    """What sets it apart from the kernel in a server, for its row."""


def require(holds: bool, reason: str) -> None:
    if not holds:
        raise Refused(reason)


def check_page(shape: LayerShape) -> None:
    require(shape.page_size % 16 == 0, f"takes pages of a multiple of 16 positions, not {shape.page_size}")


def int32(case: Case, *values: int) -> "torch.Tensor":
    import torch

    return torch.tensor(values, dtype=torch.int32, device=case.table.device)


def sm_count() -> int:
    """Return the number of multiprocessors of the current GPU."""
    import torch

    return int(torch.cuda.get_device_properties(0).multi_processor_count)
