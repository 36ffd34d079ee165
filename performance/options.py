"""Options that `speed` and `profile` share: which arms, which model, which prompts. No heavy import."""

import argparse
from pathlib import Path

LONGEST = 1 << 20


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose arms and model."""
    parser.add_argument("--arm", action="append", metavar="NAME", help="an arm of `evalsuite arms`; repeat for more")
    parser.add_argument("--arms", type=Path, metavar="FILE", dest="arms_file", help="TOML file with more arms")
    model = parser.add_mutually_exclusive_group()
    model.add_argument("--model", metavar="DIR|NAME", help="checkpoint to serve (default: a small one, made once)")
    model.add_argument("--shape", metavar="H/K/D", help="dummy weights: query heads/KV heads/head size, as 24/4/256")
    parser.add_argument("--layers", type=whole_from_one, metavar="N", help="layers of the dummy model (default 16)")
    parser.add_argument("--context", type=contexts, metavar="N,N", help="tokens of the prompt, one or several lengths")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for the servers' logs, tables and plot")


def whole_from_one(text: str) -> int:
    """Return a whole number from 1, for argparse."""
    if not text.isascii() or not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def contexts(text: str) -> tuple[int, ...]:
    """Return lengths written N,N,N, each once, ascending, for argparse."""
    lengths = tuple(sorted({whole_from_one(part.strip()) for part in text.split(",")}))
    if lengths[-1] > LONGEST:
        raise argparse.ArgumentTypeError(f"{lengths[-1]} is more than {LONGEST} tokens")
    return lengths
