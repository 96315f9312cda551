"""The notebooks as pages of the documentation: run on the published measurements, with their tables and pictures.

``python docs/notebooks.py DATA`` writes ``docs/notebooks/``; without a name all of them.
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
CELL_SECONDS_AT_MOST = 600  # on the busiest machine
_OPEN = '<details markdown="1"><summary>The cell</summary>'


def read(name: str) -> Any:
    """A notebook, as it is in the repository."""
    return nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)


def execute(name: str, data: Path, state: Path) -> Any:
    """A notebook with its outputs, run on a folder of data in this interpreter's kernel, whose folder is `state`."""
    specs = state / "kernels"
    (specs / "python3").mkdir(parents=True, exist_ok=True)
    launch = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": launch, "display_name": "its own", "language": "python"}
    (specs / "python3" / "kernel.json").write_text(json.dumps(spec))
    notebook = read(name)
    options = Config(
        KernelSpecManager={"kernel_dirs": [str(specs)], "ensure_native_kernel": False},
        KernelManager={"connection_file": str(state / f"{name}-{data.name}.json")},
        NotebookClient={"timeout": CELL_SECONDS_AT_MOST},
    )
    client = NotebookClient(notebook, config=options, resources={"metadata": {"path": str(NOTEBOOKS)}})
    client.execute(env={**os.environ, "PALEO_LITE_DATA": str(data.resolve()), "IPYTHONDIR": str(state)})
    return notebook


def page_of(name: str, notebook: Any) -> tuple[str, dict[str, str]]:
    """A notebook that was run as Markdown, and its pictures by the names of their files."""
    parts: list[str] = []
    pictures: dict[str, str] = {}
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"{_OPEN}\n\n```python\n{cell.source}\n```\n\n</details>")
        for output in _whole(cell.outputs):
            picture = _picture(output)
            if picture is None:
                parts.append(_text(output))
            else:
                pictures[f"{name}-{len(pictures) + 1}.svg"] = picture
                parts.append(f"![What the cell draws]({[*pictures][-1]})")
    return "\n\n".join(part for part in parts if part) + "\n", pictures


def _picture(output: Any) -> str | None:
    data = output.get("data", {})
    found = data.get("image/svg+xml") or data.get("text/html", "")
    return found if found.lstrip().startswith("<svg") else None


def _whole(outputs: list[Any]) -> list[Any]:
    """Outputs with printed text in one piece: a busy kernel sends it in several."""
    whole: list[Any] = []
    for output in outputs:
        if output.output_type == "stream" and whole and whole[-1].get("name") == output.name:
            whole[-1] = nbformat.from_dict({**whole[-1], "text": whole[-1].text + output.text})
        else:
            whole.append(output)
    return whole


def _text(output: Any) -> str:
    """Printed text between fences; a table as Markdown or as bare HTML."""
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
    """Write the pages of some notebooks, or of all."""
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
