"""Every snippet of docs/clients that can run here does."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

PAGES = pathlib.Path(__file__).parents[4] / "docs" / "clients"


def snippets(language):
    return [
        pytest.param(found.group(1), id=f"{page.stem}-{index}")
        for page in sorted(PAGES.glob("*.md"))
        for index, found in enumerate(re.finditer(rf"```{language}\n(.*?)```", page.read_text(), re.S))
    ]


def at(snippet, base):
    return snippet.replace("http://127.0.0.1:8080", base)


@pytest.mark.parametrize("snippet", snippets("python"))
def test_python(snippet, onebit):
    done = subprocess.run([sys.executable, "-c", at(snippet, onebit)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr


@pytest.mark.parametrize("snippet", snippets("js"))
def test_node(snippet, onebit):
    folder = os.environ.get("NODE_FOLDER")
    if not folder:
        pytest.skip("there is no npm")
    script = pathlib.Path(folder) / "snippet.mjs"
    script.write_text(at(snippet, onebit))
    done = subprocess.run(["node", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr


@pytest.mark.parametrize("snippet", [p for p in snippets("bash") if p.values[0].startswith("curl")])
def test_curl(snippet, onebit):
    if not shutil.which("curl"):
        pytest.skip("there is no curl")
    done = subprocess.run(["bash", "-ec", at(snippet, onebit)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and '"content"' in done.stdout, done.stdout + done.stderr
