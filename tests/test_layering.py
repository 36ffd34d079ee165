"""Which module may import which. A file that is not in the table fails, and so does a line that is no longer true."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = {
    "evalsuite": "evalsuite",
    "evalsuite_attention": "attention",
    "evalsuite_performance": "performance",
    "evalsuite_tasks": "tasks",
}
TABLE = """
evalsuite/:
evalsuite/__main__: cli
evalsuite/arms: errors
evalsuite/checkpoint: arms errors progress
evalsuite/cli: commands errors performance/capture performance/profile performance/replay performance/speed progress
evalsuite/client: errors
evalsuite/commands: arms doctor errors force force_output gate gate_output journal plan_output planning policy \
    progress report runner samples ship sides tasks
evalsuite/comparison: divergence early journal pairing receipts records statistics validity
evalsuite/copies: records statistics
evalsuite/contradictions: arms journal receipts records
evalsuite/divergence: journal pairing records
evalsuite/divergence_output: divergence pairing records wording
evalsuite/doctor: checkpoint environment
evalsuite/drift: records statistics verdict
evalsuite/early: journal pairing records statistics
evalsuite/envelope: arms
evalsuite/environment:
evalsuite/errors:
evalsuite/extraction: values
evalsuite/force: arms checkpoint client envelope environment errors journal progress prompts receipts records report \
    runner server tasks verdict
evalsuite/force_output: copies drift envelope errors force journal progress receipts records render report verdict \
    wording
evalsuite/forced: client
evalsuite/gate: comparison errors force_output journal policy records release report ship statistics verdict wording
evalsuite/gate_output: errors gate journal records render report verdict wording
evalsuite/guard:
evalsuite/harness: errors tasks/
evalsuite/journal: errors records
evalsuite/pairing: journal records scoring
evalsuite/plan_output: planning render wording
evalsuite/planning: errors statistics
evalsuite/policy: errors
evalsuite/progress:
evalsuite/prompts: client errors records
evalsuite/receipts: arms records
evalsuite/records: values
evalsuite/release: errors journal policy records sides
evalsuite/render: comparison divergence_output early pairing records verdict wording
evalsuite/report: comparison divergence divergence_output errors journal pairing records render verdict wording
evalsuite/runner: arms checkpoint client early environment errors journal progress prompts receipts \
    records server settle tasks
evalsuite/samples: errors journal pairing records scoring
evalsuite/scoring: errors extraction harness records values
evalsuite/server: arms client errors
evalsuite/settle: comparison journal pairing receipts records scoring verdict
evalsuite/ship: environment errors
evalsuite/sides: errors journal receipts records
evalsuite/statistics:
evalsuite/tasks: errors harness records
evalsuite/validity: contradictions early journal pairing receipts records
evalsuite/values:
evalsuite/verdict: comparison early errors statistics wording
evalsuite/wording:
attention/:
attention/cpu: plugin receipt reference
attention/decode: segments
attention/gpu: decode plugin receipt segments
attention/plugin:
attention/receipt:
attention/reference:
attention/segments:
performance/:
performance/break_even:
performance/candidate: layer_shape paged
performance/capture: evalsuite/arms evalsuite/checkpoint evalsuite/environment evalsuite/errors evalsuite/progress \
    options prompt_text
performance/capture_file: evalsuite/errors layer_shape options
performance/capture_worker: attention/cpu attention/gpu capture_file
performance/flash_kernels: candidate layer_shape paged
performance/kernels: attention/decode attention/reference attention/segments candidate flash_kernels paged
performance/layer_shape: evalsuite/errors
performance/measuring: evalsuite/client evalsuite/progress evalsuite/server serving workload
performance/models: evalsuite/errors layer_shape
performance/options:
performance/paged: capture_file evalsuite/errors layer_shape
performance/profile: evalsuite/client evalsuite/environment evalsuite/errors options profile_output profiling serving \
    workload
performance/profile_output: evalsuite/environment evalsuite/progress evalsuite/render profiling traces
performance/profiling: evalsuite/arms evalsuite/environment evalsuite/progress evalsuite/server serving traces \
    workload
performance/prompt_text:
performance/replay: candidate capture_file evalsuite/environment evalsuite/errors evalsuite/progress kernels \
    layer_shape options paged replay_output timing trials workload
performance/replay_output: evalsuite/progress evalsuite/render trials
performance/serving: evalsuite/arms evalsuite/client evalsuite/environment evalsuite/errors \
    evalsuite/progress evalsuite/receipts evalsuite/records evalsuite/server workload
performance/speed: evalsuite/client evalsuite/environment evalsuite/errors evalsuite/progress measuring options \
    serving speed_output workload
performance/speed_output: break_even evalsuite/arms evalsuite/environment evalsuite/progress evalsuite/render \
    measuring
performance/timing:
performance/traces:
performance/trials: attention/reference candidate evalsuite/errors evalsuite/progress paged timing
performance/workload: evalsuite/arms evalsuite/checkpoint evalsuite/environment evalsuite/errors models
tasks/:
tasks/capitals: common evalsuite/errors
tasks/common: evalsuite/errors evalsuite/scoring
tasks/gpqa: common
tasks/hub: common evalsuite/errors evalsuite/values
tasks/longfacts: common evalsuite/errors
tasks/sums: common
"""
HEAVY = {"vllm", "torch", "triton", "datasets", "lm_eval", "transformers", "scipy", "huggingface_hub", "reasoning_gym"}
FILES = {folder: sorted((ROOT / folder).rglob("*.py")) for folder in FOLDERS.values()}


def imported(tree: ast.AST, package: str) -> Iterator[str]:
    """Yield each name that is imported below a node of a module of `package`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = ".".join(filter(None, [package if node.level else "", node.module]))
            yield from (f"{source}.{alias.name}" for alias in node.names)


def module(name: str) -> str | None:
    """Return folder/module for a name that is imported from this project; a package counts as one module."""
    package, _, rest = name.partition(".")
    if package not in FOLDERS:
        return None
    folder, name = FOLDERS[package], rest.partition(".")[0]
    return f"{folder}/{name}" if (ROOT / folder / f"{name}.py").exists() or name == "statistics" else f"{folder}/"


def read() -> dict[str, set[str]]:
    """Return what each module imports of this project; its own folder's modules without the folder."""
    found: dict[str, set[str]] = {}
    for package, folder in FOLDERS.items():
        for file in FILES[folder]:
            own, *below = file.relative_to(ROOT / folder).with_suffix("").parts
            name = f"{folder}/{own}".replace("/__init__", "/")
            names = imported(ast.parse(file.read_text()), f"{package}.{own}" if below else package)
            others = {module(each) for each in names} - {None, name, f"{folder}/"}
            found.setdefault(name, set()).update(str(each).removeprefix(f"{folder}/") for each in others)
    return found


def test_modules_import_what_the_table_says_and_nothing_else() -> None:
    lines = (line.partition(":") for line in TABLE.strip().split("\n"))
    assert read() == {name: set(rest.split()) for name, _, rest in lines}


def test_evalsuite_and_attention_never_import_each_other() -> None:
    lines = TABLE.strip().split("\n")
    assert not [line for line in lines if line.startswith("evalsuite") and "attention" in line]
    assert not [line for line in lines if line.startswith("attention") and ("evalsuite" in line or "tasks" in line)]


def test_heavy_packages_are_imported_within_functions_only() -> None:
    in_the_server = ROOT / "evalsuite" / "forced.py"  # vLLM imports it, and nobody else
    for file in set(FILES["evalsuite"]) - {in_the_server}:
        for statement in ast.parse(file.read_text()).body:
            if not isinstance(statement, ast.FunctionDef | ast.ClassDef):
                heavy = {name.partition(".")[0] for name in imported(statement, "evalsuite")} & HEAVY
                assert not heavy, f"{file.name} imports {heavy} at module level"


def test_help_compare_gate_and_report_load_no_heavy_package() -> None:
    script = f"import sys, evalsuite.cli, evalsuite.report, evalsuite.sides; print({HEAVY} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "set()"
