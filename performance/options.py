"""What the commands share of their options. No heavy import."""

import argparse
from pathlib import Path

MOST = 1 << 20  # of anything counted here, tokens of a context included


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `speed` and `profile` share: which arms, which model, which prompts."""
    parser.add_argument("--arm", action="append", metavar="NAME", help="an arm of `evalsuite arms`; repeat for more")
    parser.add_argument("--arms", type=Path, metavar="FILE", dest="arms_file", help="TOML file with more arms")
    model = parser.add_mutually_exclusive_group()
    model.add_argument("--model", metavar="DIR|NAME", help="checkpoint to serve (default: a small one, made once)")
    model.add_argument("--shape", metavar="H/K/D", help="dummy weights: query heads/KV heads/head size, as 24/4/256")
    parser.add_argument("--layers", type=whole_from_one, metavar="N", help="layers of the dummy model (default 16)")
    parser.add_argument("--context", type=whole_numbers, metavar="N,N", help="tokens of the prompt, one length or more")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for the servers' logs, tables and plot")


def whole_from_one(text: str) -> int:
    """Return a whole number from 1 to MOST, for argparse."""
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and 1 <= int(text) <= MOST):
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is not a whole number from 1 to {MOST}")
    return int(text)


def whole_numbers(text: str) -> tuple[int, ...]:
    """Return numbers written N,N,N, each once, ascending, for argparse."""
    return tuple(sorted({whole_from_one(part.strip()) for part in text.split(",")}))
