"""Run the notebooks on the published measurements, and write pages with their tables and charts.

``python docs/notebooks.py DATA [NAME ...]`` writes ``docs/notebooks/``; without names it runs all notebooks.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from traitlets.config import Config

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
PAGES = Path(__file__).parent / "notebooks"
CELL_TIMEOUT_S = 600  # generous, for a machine under load
_OPEN = '<details markdown="1"><summary>The cell</summary>'


def read(name: str) -> Any:
    """Read a notebook of the repository."""
    return nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)


def execute(name: str, data: Path, state: Path) -> Any:
    """Run a notebook on a folder of data and return it with its outputs; `state` is a folder for the kernel's files."""
    specs = state / "kernels"
    (specs / "python3").mkdir(parents=True, exist_ok=True)
    launch = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": launch, "display_name": "this interpreter", "language": "python"}
    (specs / "python3" / "kernel.json").write_text(json.dumps(spec))
    notebook = read(name)
    options = Config(
        KernelSpecManager={"kernel_dirs": [str(specs)], "ensure_native_kernel": False},
        KernelManager={"connection_file": str(state / f"{name}-{data.name}.json")},
        NotebookClient={"timeout": CELL_TIMEOUT_S},
    )
    client = NotebookClient(notebook, config=options, resources={"metadata": {"path": str(NOTEBOOKS)}})
    client.execute(env={**os.environ, "PALEO_LITE_DATA": str(data.resolve()), "IPYTHONDIR": str(state)})
    return notebook


def page_of(name: str, notebook: Any) -> tuple[str, dict[str, str]]:
    """Return an executed notebook as Markdown, and its charts by file name."""
    parts: list[str] = []
    pictures: dict[str, str] = {}
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"{_OPEN}\n\n```python\n{cell.source}\n```\n\n</details>")
        for output in _join_streams(cell.outputs):
            picture = _picture(output)
            if picture is None:
                parts.append(_text(output))
            else:
                pictures[f"{name}-{len(pictures) + 1}.svg"] = picture
                parts.append(f"![Chart drawn by the cell]({[*pictures][-1]})")
    return "\n\n".join(part for part in parts if part) + "\n", pictures


def _picture(output: Any) -> str | None:
    data = output.get("data", {})
    image = data.get("image/svg+xml") or data.get("text/html", "")
    return image if image.lstrip().startswith("<svg") else None


def _join_streams(outputs: list[Any]) -> list[Any]:
    """Join consecutive pieces of printed text, because a busy kernel sends it in several outputs."""
    joined: list[Any] = []
    for output in outputs:
        if output.output_type == "stream" and joined and joined[-1].get("name") == output.name:
            joined[-1] = nbformat.from_dict({**joined[-1], "text": joined[-1].text + output.text})
        else:
            joined.append(output)
    return joined


def _text(output: Any) -> str:
    """Return printed text in a fenced block, or a table as Markdown or HTML without styles."""
    if output.output_type == "stream":
        return f"```text\n{output.text.rstrip()}\n```"
    data = output.data
    if "text/markdown" in data:
        return str(data["text/markdown"]).strip()
    if "<table" in data.get("text/html", ""):
        table = re.search(r"<table.*</table>", data["text/html"], re.DOTALL)
        assert table is not None
        return re.sub(r'<(\w+)((?: (?:row|col)span="\d+")?)[^>]*>', r"<\1\2>", re.sub(r"\n\s*", "\n", table[0]))
    return f"```text\n{data['text/plain']}\n```"


def main(data: str, *names: str) -> None:
    """Write the pages of the named notebooks, or of all notebooks."""
    PAGES.mkdir(exist_ok=True)
    for name in names or sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as state:
            text, pictures = page_of(name, execute(name, Path(data), Path(state)))
        for old in PAGES.glob(f"{name}*"):
            old.unlink()
        (PAGES / f"{name}.md").write_text(text)
        for file, picture in pictures.items():
            (PAGES / file).write_text(picture)
        print(f"{PAGES / name}.md: {len(pictures)} pictures")


if __name__ == "__main__":
    main(*sys.argv[1:])
