"""A policy file that says anything unknown or out of range is refused, as nothing in it may be misread."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from evalsuite.cli import build_parser
from evalsuite.errors import UserError
from evalsuite.policy import Policy, TaskPolicy, load_policy

TASK = "[task.gpqa]\nmargin = 0.05\n"


def test_a_policy_is_read_as_written(tmp_path):
    file = tmp_path / "policy.toml"
    file.write_text(
        f'alpha = 0.01\ninconclusive = "advisory"\n{TASK}accept_within_margin = true\n'
        '[task."lm-eval:gsm8k"]\nmargin = 0.02\nrequired = false\n'
    )
    assert load_policy(file) == Policy(
        tasks={
            "gpqa": TaskPolicy(margin=0.05, accept_within_margin=True),
            "lm-eval:gsm8k": TaskPolicy(margin=0.02, required=False),
        },
        alpha=0.01,
        inconclusive_blocks=False,
    )


def test_what_a_policy_leaves_out_is_strict(tmp_path):
    file = tmp_path / "policy.toml"
    file.write_text(TASK)
    assert load_policy(file) == Policy(
        tasks={"gpqa": TaskPolicy(margin=0.05, required=True, accept_within_margin=False)},
        alpha=0.05,
        inconclusive_blocks=True,
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[task", "cannot be read as TOML"),
        ("", "names no task"),
        ("task = 1\n", "names no task"),
        ("margin = 0.05\n" + TASK, "holds 'margin', which means nothing here"),
        ("[tasks.gpqa]\nmargin = 0.05\n", "holds 'tasks', which means nothing here"),
        (TASK + "maximum = 1\n", "[task.gpqa] holds 'maximum', which means nothing here"),
        ("[task.gpqa]\n", "[task.gpqa] has no margin"),
        ("[task]\ngpqa = 0.05\n", "[task.gpqa] has no margin"),
        ("[task.gpqa]\nmargin = 0\n", "margin is 0; expected a fraction between 0 and 1"),
        ("[task.gpqa]\nmargin = 1\n", "margin is 1;"),
        ("[task.gpqa]\nmargin = -0.05\n", "margin is -0.05;"),
        ("[task.gpqa]\nmargin = nan\n", "margin is nan;"),
        ("[task.gpqa]\nmargin = true\n", "margin is True;"),
        ('[task.gpqa]\nmargin = "5%"\n', "margin is '5%';"),
        (TASK + "required = 0\n", "required is 0; expected true or false"),
        (TASK + 'accept_within_margin = "yes"\n', "accept_within_margin is 'yes'; expected true or false"),
        (TASK + "required = false\n", "requires no task"),
        ("alpha = 0\n" + TASK, "alpha is 0;"),
        ("alpha = 1.0\n" + TASK, "alpha is 1.0;"),
        ("alpha = 1e-9\n" + TASK, "alpha is 1e-09; expected a level from 0.001 to 0.5"),
        ("alpha = 0.51\n" + TASK, "alpha is 0.51; expected a level"),
        ('inconclusive = "pass"\n' + TASK, 'inconclusive is \'pass\'; expected "block" or "advisory"'),
        ("inconclusive = true\n" + TASK, "inconclusive is True;"),
    ],
)
def test_a_wrong_policy_is_refused_in_one_line(tmp_path, text, message):
    file = tmp_path / "policy.toml"
    file.write_text(text)
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        load_policy(file)
    assert "\n" not in str(caught.value) and str(file) in str(caught.value)


def test_a_policy_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UserError, match="cannot be read as TOML"):
        load_policy(tmp_path / "nowhere.toml")


def test_the_policy_and_the_workflow_of_the_page_on_ci_are_valid(tmp_path):
    page = (Path(__file__).parent.parent / "docs" / "ci.md").read_text()
    (toml,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    file = tmp_path / "policy.toml"
    file.write_text(toml)
    assert load_policy(file).tasks["gsm8k"].accept_within_margin
    (workflow,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    jobs = yaml.safe_load(workflow)["jobs"]
    assert jobs["gate"]["needs"] == "ask"
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    (gate,) = [shlex.split(command) for command in commands if "evalsuite gate" in command]
    assert build_parser().parse_args(gate[1:]).policy == Path("gate.toml")
