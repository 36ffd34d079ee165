"""What is written down: the same bytes each time, nothing hidden, nothing that a model wrote taken for markup."""

import csv
import io
import json
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from markdown_it import MarkdownIt

from evalsuite.errors import UserError
from evalsuite.journal import load_run
from evalsuite.render import escape, render_html, render_markdown
from evalsuite.report import derive, render_csv, render_json, render_text, write
from evalsuite.scoring import Grade
from made_runs import make_run, make_sampled_run, write_run

DERIVED = ("pairs.csv", "comparison.json", "report.md", "report.html")
PAIRS = "rr " * 60 + "rw rt rn re wr tr " + "ww " * 30 + "tt tt"
PAGE_TAGS = {"html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "ul", "li"}
TABLE_TAGS = {"table", "thead", "tbody", "tr", "th", "td"}
NASTY = [
    "<script>alert(1)</script>",
    "a|b|c",
    "`code` ```",
    "**bold** _it_ ~~no~~",
    "[link](http://evil.example)",
    "![x](http://evil.example/x.png)",
    "&lt;b&gt; &amp;",
    "line\nbreak\r\nand\ttab",
    "# heading",
    "\\frac{1}{2} \\| \\",
    "$x$ and @someone",
    "\x1b[31mred\x1b[0m \x00",
    "\u202egnp.exe\u2066",
    "\ud800 lonely",
    "</td></tr></table><h1>PASS</h1>",
    "A" * 5000,
]


def markdown_of(report):
    return render_markdown(report.meta, report.comparison, report.decision)


def with_answers(run, answers):
    """A report in which the candidate's answer to each question is one of `answers`."""
    report = derive(run)
    pairs = tuple(
        replace(pair, candidate=Grade(verdict="wrong", answer=answer))
        for pair, answer in zip(report.comparison.pairs, answers, strict=True)
    )
    return replace(report, comparison=replace(report.comparison, pairs=pairs))


class Page(HTMLParser):
    """The tags of a page and the text of its table cells."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.cells = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += attrs
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_data(self, data):
        if self.cells:
            self.cells[-1] += data


def test_derived_files_are_rebuilt_to_the_same_bytes(tmp_path):
    path = write_run(make_run(PAIRS, path=tmp_path / "run"))
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    contents = []
    for _ in range(2):
        run = load_run(path)
        write(run, derive(run))
        contents.append({name: (path / name).read_bytes() for name in DERIVED})
        for name in DERIVED:
            (path / name).unlink()
    assert contents[0] == contents[1]
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before


def test_nothing_in_the_derived_files_depends_on_where_the_run_lies(tmp_path):
    for name in ("here", "there"):
        run = load_run(write_run(make_run("rr rw wr", path=tmp_path / name)))
        write(run, derive(run))
    for name in DERIVED:
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes()


def test_a_directory_that_cannot_be_written_is_told_in_a_line(tmp_path):
    run = make_run("rr", path=tmp_path / "gone")
    with pytest.raises(UserError, match="cannot be written"):
        write(run, derive(run))


def test_the_first_line_is_the_verdict():
    for pairs, margin in ((PAIRS, None), (PAIRS, 0.01), ("rr " * 200, 0.05), ("rr rw " * 20, None), ("", 0.1)):
        report = derive(make_run(pairs), margin=margin)
        first = markdown_of(report).splitlines()[0]
        assert first == "# " + escape(report.decision.headline, longest=1000)
        assert first.startswith(f"# {report.decision.verdict.value}: ")


def test_printed_verdict_exit_code_and_json_are_one_value():
    for pairs, margin in ((PAIRS, None), (PAIRS, 0.01), ("rr " * 200, 0.05), ("rr rw " * 20, None), ("", 0.1)):
        report = derive(make_run(pairs), margin=margin)
        data = json.loads(render_json(report))
        assert data["verdict"] == report.decision.verdict and data["exit_code"] == report.decision.exit_code
        lines = render_text(report).splitlines()
        assert report.decision.headline in lines
        assert lines[-1].startswith(f"exit code {report.decision.exit_code}: ")
        assert f"Exit code {report.decision.exit_code}: " in markdown_of(report)


def test_the_report_holds_every_part():
    text = markdown_of(derive(make_run(PAIRS), margin=0.01))
    for line in (
        "| baseline right | 60 kept | 4 lost | 64 |",
        "| baseline not right | 2 gained | 32 missed | 34 |",
        "| without pairs that either arm truncated | 94 |",
        "| baseline truncated | 2 | 1 |",
        "| baseline not truncated | 1 | 94 |",
        "| baseline error | 0 | 0 |",
        "| answer not found | 0 | 1 |",
        "| errors | 0 | 1 |",
        "| own kernel | proven | proven |",
        "| fallbacks to the stock kernel | 0 | 0 |",
        "| margin asked for | 1.0 points |",
        "| q060 | A | A | B |",
        "| q061 | A | A | (truncated) |",
        "| q062 | A | A | (answer not found) |",
        "| q063 | A | A | (error) |",
        "| q064 | A | B | A |",
    ):
        assert line in text, line
    for word in ("Tango", "mid-p McNemar", "exact", "smallest margin supported", "tokens generated", "p of more"):
        assert word in text, word


def test_an_arm_whose_path_cannot_be_proven_is_called_that():
    run = make_run("rr " * 10)
    arms = {arm: configured | {"kernel": None} for arm, configured in run.meta["arms"].items()}
    assert "| own kernel | path is not proven | path is not proven |" in markdown_of(
        derive(replace(run, meta=run.meta | {"arms": arms}))
    )


def test_of_a_gated_set_only_ids_are_written():
    run = make_run(PAIRS)
    gated = derive(replace(run, meta=run.meta | {"task": run.meta["task"] | {"gated": True}}))
    text = markdown_of(gated)
    assert "| q060 |\n| q061 |" in text and "(truncated)" not in text
    rows = list(csv.DictReader(io.StringIO(render_csv(gated))))
    assert "target" not in rows[0] and "candidate_answer" not in rows[0] and rows[60]["outcome"] == "lost"
    secret = with_answers(replace(run, meta=gated.meta), ["SECRET"] * len(run.questions))
    for output in (markdown_of(secret), render_csv(secret), render_json(secret), render_text(secret)):
        assert "SECRET" not in output


def test_no_response_text_is_written():
    run = make_run("rr rw")
    report = derive(run)
    for output in (markdown_of(report), render_csv(report), render_json(report), render_text(report)):
        assert "Answer:" not in output


@pytest.mark.parametrize("answer", NASTY)
def test_an_answer_is_shown_as_it_is_and_never_taken_for_markup(answer):
    report = with_answers(make_run("rr"), [answer])
    text = markdown_of(report)
    [line] = [line for line in text.splitlines() if line.startswith("| q000")]
    text.encode()
    page = Page(render_html(text, title=report.decision.headline))
    assert page.tags <= PAGE_TAGS | TABLE_TAGS
    cells = Page(
        MarkdownIt("commonmark", {"html": False}).enable("table").render(f"|a|b|c|d|\n|-|-|-|-|\n{line}")
    ).cells
    assert len(cells) == 8 and cells[4].strip() == "q000"
    shown = cells[7].strip()
    plain = " ".join(answer.split())
    assert shown == plain or "\N{REPLACEMENT CHARACTER}" in shown or shown == plain[:299] + "…"
    rows = list(csv.reader(io.StringIO(render_csv(report))))
    assert len(rows) == 2 and len(rows[1]) == len(rows[0])
    render_csv(report).encode()


@pytest.mark.parametrize(
    "answer", ["=cmd|' /C calc'!A0", "+1+cmd", "-1+cmd", "@SUM(A1)", "\t=1", "\r=1", "\uff1d1", "-"]
)
def test_an_answer_is_no_formula_for_a_spreadsheet(answer):
    [row] = csv.DictReader(io.StringIO(render_csv(with_answers(make_run("rr"), [answer]))))
    assert row["candidate_answer"].startswith("'")


@pytest.mark.parametrize("answer", ["-5", "+3.25", "-1,234", "12", "A", "\\frac{1}{2}", 'a, "b"'])
def test_numbers_and_plain_answers_are_kept_as_they_are(answer):
    [row] = csv.DictReader(io.StringIO(render_csv(with_answers(make_run("rr"), [answer]))))
    assert row["candidate_answer"] == answer


def test_names_from_a_plan_are_no_markup_either():
    run = make_run("rr " * 10 + "rw " * 5)
    arms = run.meta["arms"] | {"candidate": run.meta["arms"]["candidate"] | {"name": "<b>|x", "model": "<img src=x>"}}
    report = derive(replace(run, meta=run.meta | {"arms": arms, "environment": {"gpu": "<i>\n|"}}))
    page = Page(render_html(markdown_of(report), title="<title>&"))
    assert not page.tags & {"b", "img", "i", "script"}


def test_the_page_loads_nothing():
    page = Page(render_html(markdown_of(derive(make_run(PAIRS))), title="x"))
    assert not page.tags & {"link", "script", "img", "iframe", "object"}
    assert not {name for name, _ in page.attributes} & {"src", "href", "onload", "onclick"}


def test_the_json_is_strict_and_holds_no_number_for_what_is_not_known():
    def refuse(name):
        raise AssertionError(name)

    for run in (make_run(PAIRS), make_run(""), make_run("ee ee"), make_sampled_run(["rr rw", "rr rr"])):
        data = json.loads(render_json(derive(run)), parse_constant=refuse)
        assert data["schema"] == 1 and data["table"]["pairs"] == len(derive(run).comparison.pairs)
    assert json.loads(render_json(derive(make_run("ee ee"))))["arms"]["baseline"]["tokens"] is None
    assert json.loads(render_json(derive(make_run(""))))["table"]["difference"] is None


def test_several_samples_and_shared_clusters_are_rendered_too():
    sampled = derive(make_sampled_run(["rr rw", "rr rr", "wr ww"] * 4))
    assert "Rao-Scott" in markdown_of(sampled) and ", sample 1 |" in markdown_of(sampled)
    assert "12 questions x 2 samples" in render_text(sampled)
    run = make_run("rr rr rw wr")
    shared = derive(replace(run, questions=tuple(replace(q, cluster="one") for q in run.questions)))
    assert "not known" in markdown_of(shared) and "not known" in render_text(shared)


def test_pairs_csv_has_a_line_per_pair_in_the_order_asked():
    rows = list(csv.DictReader(io.StringIO(render_csv(derive(make_run("rr rw tr ee"))))))
    assert [row["question"] for row in rows] == ["q000", "q001", "q002", "q003"]
    assert [row["outcome"] for row in rows] == ["kept", "lost", "gained", "missed"]
    assert [row["baseline_grade"] for row in rows] == ["right", "right", "truncated", "error"]
    assert rows[3]["candidate_tokens"] == "" and rows[0]["candidate_answer"] == "A"


def test_a_report_needs_neither_torch_nor_much_time():
    program = (
        "import sys, time; t = time.perf_counter(); import evalsuite.report, evalsuite.sides; "
        "print(time.perf_counter() - t); "
        "assert not {'torch', 'vllm', 'transformers', 'lm_eval', 'scipy.stats', 'pandas'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 0.3


def test_figures_have_six_digits_as_the_last_bit_differs_between_machines():
    def check(text):
        assert float(f"{float(text):.6g}") == float(text), text

    json.loads(render_json(derive(make_run(PAIRS), margin=0.01)), parse_float=check)


def test_markup_that_slipped_into_the_markdown_stays_text():
    assert "<script>" not in render_html("# PASS\n\n<script>alert(1)</script>", title="<script>")
