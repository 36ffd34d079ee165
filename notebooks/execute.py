"""Execute the notebooks of this folder and store them with their outputs, and each figure as a PNG file.

python notebooks/execute.py build/notebooks
"""

import asyncio
import base64
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).resolve().parent


async def execute(file: Path, folder: Path) -> None:
    """Write `file` with its outputs to `folder`, and its figures as NAME-1.png, ... Raises CellExecutionError."""
    notebook = nbformat.read(file, as_version=4)
    await NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(HERE)}}).async_execute()
    nbformat.write(notebook, folder / file.name)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    figures = [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    for number, figure in enumerate(figures, start=1):
        (folder / f"{file.stem}-{number}.png").write_bytes(base64.b64decode(figure))
    print(f"{folder / file.name}, {len(figures)} figures")


async def execute_all(folder: Path) -> None:
    """Execute all notebooks at once, each in its own kernel."""
    folder.mkdir(parents=True, exist_ok=True)
    await asyncio.gather(*(execute(file, folder) for file in sorted(HERE.glob("*.ipynb"))))


if __name__ == "__main__":
    asyncio.run(execute_all(Path(sys.argv[1])))
