"""Write numbers, counts and foreign text the same way everywhere."""

import unicodedata

UNKNOWN = "not known"


def points(fraction: float) -> str:
    """Return a fraction in percentage points, one decimal: 0.042 gives "4.2"."""
    return f"{fraction * 100 + 0.0:.1f}".replace("-0.0", "0.0")


def signed(fraction: float) -> str:
    """Return a difference in percentage points with its sign: -0.042 gives "-4.2", 0 gives "0.0"."""
    text = f"{fraction * 100:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text


def p_value(p: float) -> str:
    """Return a p-value with three significant digits, or "< 0.0001"."""
    return "< 0.0001" if p < 0.0001 else f"{p:.3g}"


def e_value(p: float) -> str:
    """Return the e-value whose inverse is `p`, a p-value that is valid whenever one stops."""
    return f"{1 / p:.1f}" if p > 1e-4 else "above 10,000"


def count(number: int, noun: str) -> str:
    """Return a number with its noun: "1 question", "2 questions"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def clean(text: str, *, longest: int = 120) -> str:
    """Return text of foreign origin on one line: no control, format or unpaired characters, cut at `longest`.

    What a model or a data file wrote could otherwise break a table, move a terminal's cursor or turn its text around.
    """
    line = " ".join(text.split())
    shown = "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(c)[0] == "C" else c for c in line)
    return shown if len(shown) <= longest else shown[: longest - 1] + "\N{HORIZONTAL ELLIPSIS}"
