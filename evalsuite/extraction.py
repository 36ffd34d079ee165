r"""Find the answer that a response declares.

The rules, the same for every task:

* Only the visible text counts: what follows the last `</think>`. Where a `<think>` stays open there is none.
* An answer is declared by a label (`Answer: B`, "the answer is 12", `#### 12`, `<answer>`) or by `\boxed{...}`. The
  last declared answer wins. Where nothing is declared so, an option or an expression may be the whole response, an
  option its last line, and a number may stand in the final sentence.
* A declaration is no answer if it is denied ("the answer is not B"), asked ("is the answer B?") or supposed ("if the
  answer is B", "the answer would be B if ..."). One with a condition ("the answer is B if ...") counts only where none
  without stands. Alternatives ("A or B"), an option that does not exist and a retraction ("Answer: B. No, that is
  wrong.") leave no answer, not even an earlier one: nothing is picked for the model.
* A fragment is never an answer: not the 2 of `2x`, not the A of "a mixture", not the 12 of `12,34`.

`tests/data/extraction_cases.jsonl` is the table of cases that fixes these rules. Changing a rule changes numbers.
"""

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterator
from string import ascii_uppercase
from typing import NamedTuple

from evalsuite.values import UNCLEAR, read_expression, read_letter, read_number, read_sentence_number, read_words


class Claim(NamedTuple):
    """A place where something is declared: `value` is read for the answer, `end` is where the text goes on."""

    start: int
    end: int
    value: str


_LABELS = (
    re.compile(
        r"\b(?:answer|(?:correct|right|best)\s+(?:option|choice|letter))\b"
        r"(?:\s+(?:option|choice|letter))?(?:\s+(?:to|among|of|for|from|here)\b[^.:?!\n=]{0,60}?)?(?:\s*\([^()\n]{1,30}\))?"
        r"(?:\s*(?::|=|→|⇒|->)|\s+(?:is|must\s+be|should\s+be|would\s+be|equals)\b(?:\s*:)?)\s*"
        r"(?:(?:then|therefore|thus|hence|clearly|indeed|simply|just|probably|likely|most\s+likely)\b\s*)?",
        re.IGNORECASE,
    ),
    re.compile(  # a heading above the answer, or "Answer B" on a line of its own
        r"^[#>\s]*(?:(?:final|correct)\s+)?answer(?:[ \t]*\n\s*|[ \t]+(?=\(?[A-Z]\)?\W*$|[-+\u2212]?[\d.,]+\W*$))",
        re.IGNORECASE | re.MULTILINE,
    ),
    re.compile(r"^####[ \t]*(?=[-+\u2212]?\s*[\d.])", re.MULTILINE),
)
_CHOICE = re.compile(r"\bI(?:'d|'ll|\s+would|\s+will)?\s+(?:choose|pick|select|go\s+with)\s+", re.IGNORECASE)
_CORRECT_OPTION = re.compile(
    r"(?<![\w'])(?<!statement )(?<!claim )(?<!equation )(?<!step )"
    r"(?P<value>(?:option\s+|choice\s+)?(?:\(?[A-Z]\)?\s+(?:or|and)\s+)?\(?[A-Z]\)?)\s+(?:is|must\s+be)\s+"
    r"(?:(?:then|therefore|thus|hence|clearly|indeed)\s+)?"
    r"(?:the\s+(?:(?:only|best|most)\s+)?(?:(?:correct|right|best)\s+)?(?:answer|option|choice)|correct\b|right\b)"
    r"(?!\s+(?:only|if|when|unless|that|about|in|under)\b|\s+for\s+\S+\s?[<>=]"
    r"|\s+(?:to|for|of)\s+(?:(?:an?|some|the)\s+)?(?:different|another|other)\b)"
)
_SUPPOSED = re.compile(
    r"(?:\b(?:if|whether|suppose|supposing|assume|assuming|unless|maybe|perhaps)\s+(?:that\s+)?(?:(?:the|my|our)\s+)?"
    r"|(?:\bnot|n't|\bcannot|\bnever)\s+(?:(?:be|think|believe|say|claim|mean)\s+)?(?:that\s+)?(?:(?:the|my|our)\s+)?"
    r"|\b(?:rul(?:e|es|ed|ing)\s+out|exclud(?:e|es|ed|ing)|reject(?:s|ed|ing)?)\s+(?:(?:the|my|our)\s+)?"
    r"|\bis\s+(?:the|my|our)\s+)(?:(?:final|correct|right|best)\s+)*$",
    re.IGNORECASE,
)
_CONDITION = re.compile(r"[^.!?,;\n]{0,60}?\s(?<!even )(?:if|unless|when|provided|assuming)\b", re.IGNORECASE)
_UNREAL = re.compile(r"\bwould\b|'d\b", re.IGNORECASE)
_UNREAL_CONDITION = re.compile(  # "if I had to guess, I would choose B" chooses B
    r"\b(?:if(?!\s+I\s+ha(?:d|ve)\s+to\b)|unless|suppose|supposing|assuming|otherwise)\b|(?:^|,)\s*(?:were|had)\b",
    re.IGNORECASE,
)
_OTHER_QUESTION = re.compile(r"\b(?:different|another|other|previous)\s+(?:question|problem|part|case)", re.IGNORECASE)
_DENIED = re.compile(r"(?:certainly\s+|definitely\s+)?(?:not|never)\b\s*", re.IGNORECASE)
_ASKED = re.compile(r"[^.!\n]{0,80}\?")
_TAKEN_BACK = re.compile(
    r"[^.!?;\n]{0,40}[.!?;,\s]*(?:(?:wait|no|hmm+|oops|sorry|actually|but)\b[,.! ]*)*"
    r"(?:(?:that|this|which)(?:'s|\s+is|\s+was)\s+(?:wrong|incorrect|not\s+right|not\s+correct|a\s+mistake|an\s+error)\b"
    r"(?!,?\s+(?:only|just|except|for|if|when|where|unless|in|with|under|at|of|about|to|by)\b)"
    r"|i\s+(?:made|was)\s+(?:a\s+mistake|an\s+error|wrong|mistaken)|scratch\s+that)",
    re.IGNORECASE,
)
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_WRAPPER = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|mathsf|mbox)\s*\{([^{}]*)\}")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
_LONE_OPTION = re.compile(r"\W*[A-Za-z]\W*")
_LONE_EXPRESSION = re.compile(r"(?=.*(?:\d|\\[a-z]|^\W*[A-Za-z]\W*$)).{1,200}")
_OPTION_LINE = re.compile(r"\(?[A-Z][).:]\)?\s[^\n]*")


def extract(text: str | None, kind: str, options: int | None = None) -> str | None:
    r"""Return the answer that `text` declares, or None if it declares none.

    `kind` is `mcq` (the answer is one of the first `options` capital letters), `number` (an exact decimal without
    separators, or a fraction `p/q`), `math` (LaTeX as it stands in the box or after the label) or `text` (words).
    """
    visible = visible_text(text)
    if kind == "mcq":
        return extract_option(visible, ascii_uppercase[: options or 26])
    return {"number": extract_number, "math": extract_math, "text": extract_text}[kind](visible)


def visible_text(text: str | None) -> str:
    """Return what follows the last closed reasoning block, or "" where one stays open."""
    visible = (text or "").rpartition("</think>")[2]
    return "" if "<think>" in visible else visible.strip()


def extract_option(text: str, letters: str) -> str | None:
    """Return the declared one of `letters`, or None."""

    def read(value: str) -> str | None:
        return read_letter(value, letters)

    text = _plain(unicodedata.normalize("NFKC", text))
    claims = _declarations(text)
    claims += [Claim(found.start(), found.end(), _line(text, found.end())) for found in _CHOICE.finditer(text)]
    claims += [Claim(found.start(), found.end(), found["value"]) for found in _CORRECT_OPTION.finditer(text)]
    answer = _last_answer(text, sorted(claims), read)
    if answer is None and text:
        *before, last = text.splitlines()
        if _LONE_OPTION.fullmatch(last) and not (before and _LONE_OPTION.fullmatch(before[-1])):
            answer = read(last.strip())
        elif _OPTION_LINE.fullmatch(text):
            answer = read(text)
    return answer or None


def extract_number(text: str) -> str | None:
    """Return the declared number, or None.

    Where no label or box declares one, the final sentence may: its only number, or its last one that is neither part of
    a sum nor a circumstance ("18 are left from 24" says 18). A sentence that asks, doubts or denies says nothing.
    """
    text = _plain(text)
    claims = [  # 5! in a box is a factorial, "Answer: 5!" a cheer
        claim if _BOX.match(text, claim.start) else claim._replace(value=claim.value.rstrip("! "))
        for claim in _declarations(text)
    ]
    answer = _last_answer(text, claims, read_number)
    if answer is None:
        sentences = [sentence.rstrip("! ") for sentence in _SENTENCE_END.split(text) if sentence.strip()]
        answer = read_sentence_number(sentences[-1]) if sentences else None
    return answer or None


def extract_math(text: str) -> str | None:
    """Return the declared expression as written, or None."""
    text = _plain(text, unwrap=False)
    answer = _last_answer(text, _declarations(text), read_expression)
    if answer is None and _LONE_EXPRESSION.fullmatch(text):
        answer = read_expression(text)
    return answer or None


def extract_text(text: str) -> str | None:
    """Return the words declared, to the end of their sentence, or None."""
    text = _plain(text)
    claims = [
        claim  # "the answer is simple" names nothing; "Answer: bern" does
        for claim in _declarations(text)
        if ":" in text[claim.start : claim.end] or not claim.value[:1].islower()
    ]
    return _last_answer(text, claims, read_words) or None


def _last_answer(text: str, claims: list[Claim], read: Callable[[str], str | None]) -> str | None:
    """Return the answer that stands after the last of `claims`, UNCLEAR if none does, None if nothing was declared."""
    answer: str | None = None
    previous = 0
    for claim in claims:
        alternative = previous and re.fullmatch(r"[\s$]*(?:or|and)[\s$]*", text[previous : claim.start])
        previous = claim.end
        if alternative:  # \boxed{2} or \boxed{3}
            answer = UNCLEAR
            continue
        if _supposed(text, claim) or _ASKED.match(claim.value):
            continue
        if answer is not None and _CONDITION.match(text, claim.end):
            continue
        if denial := _DENIED.match(claim.value):
            if answer and read(claim.value[denial.end() :]) == answer:
                answer = UNCLEAR
            continue
        found = read(claim.value)
        if found is not None:
            answer = UNCLEAR if _TAKEN_BACK.match(text, claim.end) else found
    return answer


def _supposed(text: str, claim: Claim) -> bool:
    """Tell whether `claim` says what an answer is not, or would be: "if the answer is B", "it would be C if ..."."""
    declared = text[claim.start : claim.end]
    if _SUPPOSED.search(text, max(0, claim.start - 60), claim.start) or _OTHER_QUESTION.search(declared):
        return True
    before = re.split(r"[.!?\n]", text[max(0, claim.start - 120) : claim.start])[-1]
    after = re.split(r"[!?\n]|\.(?!\d)", text[claim.end : claim.end + 120])[0]
    return bool(_UNREAL.search(declared) and _UNREAL_CONDITION.search(before + declared + after))


def _declarations(text: str) -> list[Claim]:
    """Return every boxed value and every labelled one, in order."""
    boxes = list(_boxes(text))
    starts = [box.start for box in boxes]
    claims = list(boxes)
    for pattern in _LABELS:
        for label in pattern.finditer(text):
            place = bisect_right(starts, label.start()) - 1
            inside = place >= 0 and label.start() < boxes[place].end
            if not inside and not _BOX.match(text, label.end()):
                claims.append(Claim(label.start(), label.end(), _line(text, label.end())))
    return sorted(claims)


def _line(text: str, start: int) -> str:
    """Return the rest of a line, as far as an answer can reach."""
    return text[start : start + 500].partition("\n")[0].strip()


def _boxes(text: str) -> Iterator[Claim]:
    """Yield each box whose braces are balanced, in order; of nested boxes the innermost."""
    open_braces: list[tuple[int, int | None]] = []  # (where its content begins, where its box begins)
    last_box = -1
    for token in re.finditer(_BOX.pattern + r"|\\.|[{}]", text, re.DOTALL):
        if token[0] == "}" and open_braces:
            content, start = open_braces.pop()
            if start is not None and start > last_box:
                last_box = start
                yield Claim(start, token.end(), text[content : token.start()].strip())
        elif token[0].endswith("{") and token[0] != r"\{":
            open_braces.append((token.end(), token.start() if len(token[0]) > 1 else None))


def _plain(text: str, *, unwrap: bool = True) -> str:
    r"""Return `text` without Markdown emphasis and math delimiters, and with E for `\text{E}` if `unwrap`."""
    text = re.sub(r"</answer>", "\n", re.sub(r"<answer>", "\nAnswer: ", text, flags=re.I), flags=re.I)
    text = re.sub(r"(?<=\S)\$!+(?=\s|$)", "$", text)  # no factorial: it ends the sentence
    text = re.sub(r"(?<!\w)\*\*|\*\*(?!\w)|(?<!\w)__|__(?!\w)|`", "", text)
    text = re.sub(r"(?<![\w*])\*(\S(?:[^*\n]*\S)?)\*(?![\w*])", r"\1", text)
    text = re.sub(r"\\?\$|(?<!\\)\\[()\[\]]", "", text)
    while unwrap and text != (unwrapped := _WRAPPER.sub(r"\1", text)):
        text = unwrapped
    return text.strip()
