"""Servers for the tests: the built-in model, and fixed answers."""

import os
import re
import subprocess

import pytest


def start(command, env=None):
    """Starts a server and returns the process and its address, which is in the first line that has one."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
    lines = []
    for line in process.stdout:
        lines.append(line)
        found = re.search(r"http://[\d.:]+", line)
        if found:
            return process, found.group()
    raise RuntimeError("".join(lines))


def drain(process):
    """Keeps the pipe from filling up."""
    import threading

    threading.Thread(target=lambda: [None for _ in process.stdout], daemon=True).start()


@pytest.fixture(scope="session")
def onebit():
    """The address of `onebit serve` with the built-in model."""
    process, base = start([os.environ["ONEBIT"], "serve", "seedling", "--port", "0", "--alias", "gpt-4o=seedling"])
    drain(process)
    yield base
    process.terminate()
    assert process.wait(timeout=40) == 0, "the server ends in order"


@pytest.fixture(scope="session")
def scripted():
    """The address of a server with fixed answers."""
    process, base = start([os.environ["SCRIPTED"]])
    drain(process)
    yield base
    process.kill()
    process.wait()
