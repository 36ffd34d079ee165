r"""Read one declared value, and tell whether two values are the same.

Each reader gets the text that follows a label or stands in a box. It returns the value, or None where the text is no
value at all ("the answer is simple"), or UNCLEAR where it is one that does not name a single answer ("12 or 15").
"""

import re
import unicodedata
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

UNCLEAR = ""

# --- options ---

_OPENING = r"[\s(\[{<\"'\u201c:]*"
_LETTER = re.compile(rf"{_OPENING}(?:(?:option|choice|letter|answer)\b{_OPENING})?([A-Za-z])(?![A-Za-z0-9])", re.I)
_AFTER_LETTER = re.compile(r"$|\s|[)\]}>]|[.,;:!?\"'\u201d](?!\w)")
_NO_OPTION = re.compile(r"(?:either|neither|both|none|all|cannot|can't|unknown|unclear|undetermined)\b", re.I)
_REJECTED = re.compile(
    r"[)\].\s]*\s(?:is|was)(?:n't\b|\s+(?:not|wrong|incorrect|false|excluded|ruled out|a distractor)\b)"
)
_CONNECTED = re.compile(r"\s+(?:because|since|as|for|due|by|is|and|or|which|with|but|from|in|given|where|when|so)\b")
_ANOTHER_LETTER = re.compile(
    r"[)\].}\"'\s]*\(?(?P<joint>[,;]?\s*(?:and/or|or|and|&|/)|[,;])\s*(?:(?:possibly|maybe|perhaps|even)\s+)?"
    r"(?:option\s+|choice\s+)?[(\[]?(?P<letter>[A-Z])(?![A-Za-z0-9'])(?P<end>[)\]]?\s*(?:$|[.,;]|or\b|and\b))?"
)


def read_letter(value: str, letters: str) -> str | None:
    """Return the letter with which `value` begins if it is one of `letters`; UNCLEAR for a capital that is not."""
    start = _LETTER.match(value)
    if not start:
        return UNCLEAR if _NO_OPTION.match(value) else None
    letter, rest = start[1], value[start.end() :]
    word_follows = re.match(r"\s+\w", rest)
    if word_follows and (letter.islower() or (letter in "AI" and not _CONNECTED.match(rest))):
        return None  # an article or a pronoun
    if another := _ANOTHER_LETTER.match(rest):
        article = another["letter"] in "AI" and re.match(r"\s+[a-z]", rest[another.end("letter") :])
        if not article and (another["joint"] not in (",", ";") or another["end"] is not None):
            return UNCLEAR
    if not _AFTER_LETTER.match(rest) or _REJECTED.match(rest):
        return None
    if letter.upper() in letters:
        return letter.upper()
    return UNCLEAR if letter.isupper() else None


# --- numbers ---

_UNIT = re.compile(
    r"(?:k?g|mg|lbs?|oz|[kcm]?m|mi|ft|in|yd|m?s|secs?|mins?|h|hrs?|[mM]?[lL]|mph|am|pm|k?W|V|°?[CF]|USD|EUR|c)"
    r"(?![A-Za-z0-9])|\^\{?\\circ"
)
_NUMBER = re.compile(
    r"(?<![\w.])(?P<sign>(?<![\w)\]}%])[-+])?(?:(?P<whole>\d+)\s+(?=\d+\s?/))?(?P<body>\d(?:[\d,.]*\d)?|\.\d+)"
    r"(?:e(?P<power>[-+]?\d+)|\s?/\s?(?P<below>\d+)(?![\d.,]*\d))?"
)
_WELL_FORMED = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d*\.?\d+")
_COUNTING = re.compile(r"(?:st|nd|rd|th)\b|-[A-Za-z]")
_FRAGMENT = re.compile(
    r"[A-Za-z_^²³({\\]|:\d|/\s?\d|!(?=\s*(?:$|[-+*/^=)}!,]))"
    r"|\s+(?:(?:dozens?|gross|halves|half|thirds?)\b|and\s+(?:a|one|two|three)\s+(?:half|thirds?|quarters?)\b)"
)
_OPERATOR_BEFORE = re.compile(r"(?:[+*/÷^]|[\d)]\s*[-x]|\b(?:plus|minus|times|by))\s*$")
_OPERATOR_AFTER = re.compile(
    r"%?\s*\)?\s*(?:[+*/÷^=](?!\s*[A-Za-z]{3})|-\s*[\d(]|x\s*\d|(?:plus|minus|times|divided)\b)"
)
_LEAD = re.compile(
    r"(?:(?:about|approximately|around|exactly|roughly|only|a total of|USD|Rs\.?)\s+|[~≈=\s]|[A-Za-z]{1,2}\s*=\s*)*$"
)
_SHARE_OF = re.compile(r"\s*of\s+\d")
_EQUATED = re.compile(r"[^=≈,;.?]{0,60}(?:[=≈]|\bequals\b)\s*")
_RATE = re.compile(r"\s*(?:[a-z]+\s+)?(?:/\s*[a-z]|(?:per|each|apiece)\b)", re.I)
_TOTAL = re.compile(r"\b(?:total|altogether|in all)\b", re.I)
_CIRCUMSTANCE = re.compile(
    r"\b(?:in|from|per|every|each|after|than|out of|during|within|(?<!total )of)\s+(?:the\s+|only\s+|all\s+)*$", re.I
)
_PRICE_OR_COUNT = re.compile(r"\b(?:for|at|by|with|on)\s+(?:the\s+|only\s+|all\s+)*$", re.I)
_JOINT = re.compile(
    r"%?\s*(?:,|,?\s*or|,?\s*and|to|through|-|&|/)?\s*(?:[A-Za-z]{1,2}\s*=\s*)?"
    r"|\s+(?:[a-z]+,?\s+and|hours?|minutes?|days?|weeks?|months?|years?|feet|foot|pounds?|dollars?)\s+"
)
"""What between two numbers makes them alternatives, a range, a sum of units or one number cut in two."""
_DOUBT = re.compile(
    r"\?|\b(?:not|cannot|never|maybe|perhaps|might|guess|unsure|either|between|considered|suppose)\b|n't\b", re.I
)


class _Number(NamedTuple):
    start: int
    end: int
    text: str
    """Canonical, or UNCLEAR for a fragment."""
    operand: bool


def read_number(value: str) -> str | None:
    """Return the number that `value` begins with, or else the one its first sentence gives.

    "4 pairs = 8" gives what follows `=`. A rate or a part beside a total leaves two candidates, and that is UNCLEAR.
    """
    value = _tidy(value)
    numbers = list(_numbers(value))
    if not numbers:
        return None
    first, *others = numbers
    sentence = re.split(r"(?<=[.!?])\s+(?![=*/+\s])", value)[0]
    others = [other for other in others if other.end <= len(sentence)] or others[:1]
    between = value[first.end : others[0].start] if others else ""
    if not _LEAD.match(value[: first.start]) or first.operand or _EQUATED.fullmatch(between):
        return read_sentence_number(sentence)
    if others and others[0].end <= len(sentence):
        rivals = (
            _RATE.match(between) or _TOTAL.search(sentence, others[0].start) or re.search(r"[,;]\s*total\b", between)
        )
        if rivals or _JOINT.fullmatch(between):
            return UNCLEAR
    return first.text


def read_sentence_number(sentence: str) -> str | None:
    """Return the number that `sentence` arrives at: the last after `=`, or else its last that is no circumstance."""
    sentence = _tidy(sentence)

    def before(number: _Number) -> str:
        return sentence[max(0, number.start - 40) : number.start]

    if _DOUBT.search(sentence):
        return UNCLEAR
    numbers = list(_numbers(sentence))
    results = [n for n in numbers if not n.operand]
    if not results:
        return UNCLEAR if numbers else None
    if len(results) == 1:
        return results[0].text
    equal = [n for n in results if re.search(r"[=≈]\s*$", before(n))]
    main = equal or [n for n in results if not _CIRCUMSTANCE.search(before(n))]
    if not main:
        return UNCLEAR
    chosen = main[-1]
    earlier = [n for n in numbers if n.end <= chosen.start]
    if earlier and _JOINT.fullmatch(sentence[earlier[-1].end : chosen.start]):
        return UNCLEAR
    return UNCLEAR if not equal and _PRICE_OR_COUNT.search(before(chosen)) else chosen.text


def _tidy(text: str) -> str:
    """Return `text` with one spelling for minus, digit groups, fractions, products and powers of ten."""
    text = re.sub(r"[\u2010-\u2013\u2212\uff0d]", "-", text.replace("{,}", ",").replace(r"\%", "%"))
    text = re.sub(r"(?<=\d)(?:\\[,!]|[\u2009\u202f\u00a0])(?=\d{3})", "", text)
    text = re.sub(r"\\[,;!: ]|[$€£¥~]", " ", text)
    text = re.sub(r"\\[dt]?frac\s*\{(-?)(\d+)\}\s*\{(\d+)\}", r" \1\2/\3", text)
    text = re.sub(r"\\[dt]?frac\s*(\d)\s*(\d)", r" \1/\2", text)
    text = re.sub(r"\\times|\\cdot|\u00d7", "*", text)
    text = re.sub(r"(?<=\d)\s*(?:\*|\bx\b)\s*10\s*(?:\^|\*\*)\s*\{?(-?\d+)\}?", r"e\1", text)
    for word, power in (("hundred", 2), ("thousand", 3), ("million", 6), ("billion", 9), ("trillion", 12)):
        text = re.sub(rf"(?<=\d)\s+{word}\b", f"e{power}", text, flags=re.I)
    return text


def _numbers(text: str) -> Iterator[_Number]:
    for found in _NUMBER.finditer(text):
        before, after = text[max(0, found.start() - 40) : found.start()], text[found.end() : found.end() + 40]
        if _COUNTING.match(after):  # 5th, 5-year
            continue
        body = found["body"]
        whole = len(found[0]) <= 60 and bool(_WELL_FORMED.fullmatch(body)) and not before.endswith(("{", "\\sqrt"))
        if _FRAGMENT.match(after) and not _UNIT.match(after):
            whole = False
        canonical = UNCLEAR
        if whole and int(found["below"] or 1) and abs(int(found["power"] or 0)) <= 30:
            number = Fraction(body.replace(",", "")) / int(found["below"] or 1) + int(found["whole"] or 0)
            number *= Fraction(10) ** int(found["power"] or 0)
            canonical = number_text(-number if found["sign"] == "-" else number)
        share = (found["below"] or after.startswith("%")) and _SHARE_OF.match(after.removeprefix("%"))
        operand = bool(share or _OPERATOR_BEFORE.search(before) or _OPERATOR_AFTER.match(after))
        yield _Number(found.start(), found.end(), canonical, operand)


def number_text(number: Fraction) -> str:
    """Return `number` as an exact decimal if it has at most 30 places, else as `p/q`."""
    for places in range(31):
        scaled = number * 10**places
        if scaled.denominator == 1:
            digits = str(abs(scaled.numerator)).rjust(places + 1, "0")
            point = len(digits) - places
            return "-" * (number < 0) + digits[:point] + ("." + digits[point:] if places else "")
    return f"{number.numerator}/{number.denominator}"


def same_number(answer: str, target: str) -> bool:
    """Tell whether both are the same number. Raises ValueError for a target that is none."""
    expected = read_number(target.replace("$", ""))
    if not expected:
        raise ValueError(f"target {target!r} is not a number")
    return Fraction(answer) == Fraction(expected)


# --- expressions ---

_PROSE = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_ALTERNATIVES = re.compile(r"(?<![A-Za-z\\])(?:or|either)(?![A-Za-z])")
_FUNCTIONS = {"sin", "cos", "tan", "log", "ln", "exp", "sqrt", "pi", "mod", "gcd", "lcm", "max", "min", "and", "or"}
_NAMES = re.compile(r"\\(?:begin|end|operatorname)\{\w+\*?\}")
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|mathsf|mbox)\s*\{([^{}]*)\}")


def read_expression(value: str) -> str | None:
    r"""Return `value` as written, without what ends its sentence; None if it is prose.

    More than one word outside `\text{...}` makes it prose. Intervals and tuples are one value; "2 or 3" is UNCLEAR.
    """
    value = re.sub(r"\.(?:\s.*)?$", "", value.strip(), flags=re.S).strip(" ,;:")
    if _ALTERNATIVES.search(value) or len(value) > 500:  # a model in a loop
        return UNCLEAR
    words = [word for word in _PROSE.findall(_NAMES.sub("", _TEXT.sub("", value))) if word not in _FUNCTIONS]
    return value if value and len(words) <= 1 and _balanced(value) and "\\boxed" not in value else None


def _balanced(value: str) -> bool:
    depth = 0
    for brace in re.findall(r"\\.|[{}]", value, re.S):
        depth += {"{": 1, "}": -1}.get(brace, 0)
        if depth < 0:
            return False
    return depth == 0


def same_expression(answer: str, target: str) -> bool:
    r"""Tell whether both are the same expression in another spelling.

    Spelling is: spaces, `\left`, `\right`, `\dfrac` and `\tfrac`, `\frac12`, `a/b`, braces around one sign, `\text`, a
    degree, percent or currency sign, thousands separators, and for numbers their value (0.5, 1/2, \frac{1}{2}, the
    mixed 1\frac{1}{2}, 1.5 \times 10^3). `x =` or `x \in` in front and a unit at the end may be left out, but not be
    others. Nothing else is computed: 2\sqrt{2} and \sqrt{8} differ. Letters are told apart by case, words are not.
    """
    if _canonical(answer) == _canonical(target):
        return True
    parts = zip(_parts(answer), _parts(target), strict=True)
    return all(one == other or (optional and "" in (one, other)) for optional, (one, other) in enumerate(parts))


_SYMBOL = r"(?:[A-Za-z]{2,}|[mgshLNJWVAKFC])(?:\^\{?\d\}?)?"
_UNIT_AT_END = re.compile(
    r"(?<=[\w})])\s*\\(?:text|mathrm|mbox)\s*\{(?P<text>[^{}\d]*)\}(?P<power>(?:\^\{?\d\}?)?)$"
    rf"|(?<=[\d}})])\s+(?P<plain>{_SYMBOL}(?:/{_SYMBOL})?)$"
)
_UNITS = dict(
    m="meter metre", cm="centimeter centimetre", mm="millimeter millimetre", km="kilometer kilometre", g="gram",
    kg="kilogram", s="sec second", min="minute", h="hr hour", ft="foot feet", inch="in", mi="mile", l="liter litre",
)  # fmt: skip
_SYMBOLS = {name: symbol for symbol, names in _UNITS.items() for name in names.split()}
_VARIABLE = re.compile(r"\s*([A-Za-z](?:\([A-Za-z]\))?)\s*(?:=|\\in(?![A-Za-z]))")


def _parts(expression: str) -> tuple[str, str, str]:
    """Return what `expression` says, the variable that it is said of, and its unit; "" where it names none."""
    text = _spelled(expression)
    variable = _VARIABLE.match(text)
    text = text[variable.end() :] if variable else text
    unit = _UNIT_AT_END.search(text)
    if not unit or (unit["plain"] and unit["plain"] in _FUNCTIONS):
        return _canonical(text), variable[1] if variable else "", ""
    name = re.sub(r"[\s{}.]", "", unit["plain"] or unit["text"] + unit["power"]).lower()
    name = re.sub(r"(?<=inch)es\b|(?<=\w\w)s\b", "", name)
    name = re.sub(r"[a-z]+", lambda word: _SYMBOLS.get(word[0], word[0]), name)
    return _canonical(text[: unit.start()]), variable[1] if variable else "", name


def _spelled(expression: str) -> str:
    """Return `expression` without what only sets it: dollar and degree signs, sizes of brackets, narrow spaces."""
    text = re.sub(r"[\u2010-\u2013\u2212]", "-", expression.strip().strip("$").rstrip("."))
    text = text.replace(r"\$", "").replace("$", "").replace("\\\\", ";").replace("\u00d7", r"\times ")
    text = re.sub(r"\\(?:left|right|displaystyle|limits)(?![A-Za-z])|(?<=\d)(?:\\[,!;: ]|~|\{,\})(?=\d{3})", "", text)
    text = re.sub(r"(?<!\\)\\[,!;: ]|~", " ", text)
    return re.sub(r"\^\{?\\circ\}?|\\(?:degree|%)|%|°", "", text).strip()


def _canonical(expression: str) -> str:
    text = _spelled(expression)
    plain_text = _TEXT.fullmatch(text)
    if plain_text or re.fullmatch(r"\(?[A-Za-z]+(?:[ -][A-Za-z]+)*\)?", text):
        text = (plain_text[1] if plain_text else text).strip().strip("()")
        if re.search("[A-Za-z]{3}", text):
            return text.casefold()
    text = _TEXT.sub(r"\1", re.sub(r"\\(?:d|t|c)frac(?![A-Za-z])", r"\\frac", text))
    text = re.sub(r"(?<![\w.}/])(\d+)\s+(\d+)/(\d+)(?![\w.({])", r"\1\\frac{\2}{\3}", text)
    text = re.sub(r"\\frac\s*(\w|\\pi(?![A-Za-z]))", r"\\frac{\1}", text)
    text = re.sub(r"(\\frac\s*\{(?:[^{}]|\{[^{}]*\})*\})\s*(\w)", r"\1{\2}", text)
    text = re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text)  # "1 2" is not 12
    text = re.sub(r"(?<![\d(\[,])\d{1,3}(?:,\d{3})+(?![\d,])", lambda m: m[0].replace(",", ""), text)
    text = re.sub(r"\\sqrt(\w)", r"\\sqrt{\1}", text)
    text = _QUOTIENT.sub(lambda m: rf"\frac{{{m['inner'] or m['above']}}}{{{m['below']}}}", text)
    text = re.sub(r"(?<![\w)}\]+-])\\frac\{-((?:[^{}+-]|\{[^{}]*\})+\})", r"-\\frac{\1", text)
    text = re.sub(r"([_^])\{(\w)\}", r"\1\2", text)
    text = text.replace(r"\cdot", r"\times").replace(r"\leq", r"\le").replace(r"\geq", r"\ge").replace(r"\neq", r"\ne")
    return _PLAIN_VALUE.sub(_value, text)


_FACTOR = r"\d|[A-Za-z]|\\pi(?![A-Za-z])|\\sqrt\{[^{}]*\}"
_QUOTIENT = re.compile(
    rf"(?<![\w.)}}\]^\\])(?:(?P<above>(?:{_FACTOR})+)|\((?P<inner>[^(),]+)\))/(?P<below>\d+|{_FACTOR})(?![\w.({{^!]|\\(?!end))"
)
_PLAIN_VALUE = re.compile(
    r"(?P<sign>(?<![\w.)}\]!])-)?(?:(?:(?<![\w.^])(?P<whole>\d+))?\\frac\{(?P<above>-?\d+)\}\{(?P<below>-?\d+)\}"
    r"|(?<![\w.\\])(?P<number>(?:0|[1-9]\d*)(?:\.\d*)?|\.\d+)(?!\d|\.\d)(?:\\times10\^(?:\{(?P<power>-?\d\d?)\}|(?P<digit>\d)(?!\d)))?)"
)


def _value(found: re.Match[str]) -> str:
    """Return a number by its value and set apart from its neighbours, so that 0.5 and 1/2 read alike."""
    if found["number"]:
        number = Fraction(found["number"].rstrip(".")) * Fraction(10) ** int(found["power"] or found["digit"] or 0)
    elif int(found["below"]) == 0:
        return found[0]
    else:
        number = Fraction(int(found["above"]), int(found["below"]))
        if found["whole"] and number < 0:
            return f"{found['sign'] or ''}<{found['whole']}><{number}>"  # a product
        number += int(found["whole"] or 0)
    return f"<{-number if found['sign'] else number}>"


# --- words ---


_WORDS_END = re.compile(r"(?<!\bSt)(?<!\bMt)(?<!\bFt)[.!?;](?:\s|$)|,\s+(?=[a-z])|\s[(\u2013\u2014-]")


def read_words(value: str) -> str | None:
    """Return `value` to the end of its sentence; UNCLEAR if it offers alternatives."""
    words = _WORDS_END.split(value, maxsplit=1)[0]
    words = re.sub(r"^(?:the|its)\b.*\bis\s+(?=[A-Z])", "", words.strip(), flags=re.I).strip(" \"'\u201c\u201d.,:()[]")
    if re.search(r"\bor\b|\beither\b|\s/\s", words, re.I) or len(words) > 500:
        return UNCLEAR
    return words or None


def same_words(answer: str, target: str) -> bool:
    """Tell whether both are the same words, whatever their case, accents and punctuation."""
    return _folded(answer) == _folded(target)


def _folded(words: str) -> str:
    plain = "".join(c for c in unicodedata.normalize("NFKD", words.casefold()) if not unicodedata.combining(c))
    return " ".join(re.findall(r"\w+", plain.replace("'", "").replace("\u2019", "")))
