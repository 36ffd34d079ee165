"""What the tests of the attention package share."""

import json
import os
import subprocess
import sys

import pytest


@pytest.fixture(scope="session")
def run_python():
    """Return a function that runs code in a fresh interpreter and returns the JSON that it prints after REPORT.

    vLLM's warnings, settings and patches stay in there. The interpreter sees the given environment variables, and none
    of this package's own unless they are given.
    """

    def run(code, *args, **env):
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("GGUF_PQ2_")}
        settings = {"OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "ERROR", **env}
        command = [sys.executable, "-c", code, *args]
        done = subprocess.run(command, env={**inherited, **settings}, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.rsplit("REPORT", 1)[1])

    return run
