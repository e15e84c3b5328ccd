"""Fetches and builds the peers."""

import os
import shutil
import subprocess
import sys
import tarfile

from pathlib import Path

# llama.cpp's releases are not in a package registry, but the source package of its Python binding holds a copy.
BINDING = "llama-cpp-python"
LIBRARIES = ["llama", "ggml", "ggml-base"]


def run(args):
    """Fetches and builds the peers."""
    os.nice(19)
    args.dir.mkdir(parents=True, exist_ok=True)
    bin = args.dir / "venv/bin"
    if not bin.exists():
        call(sys.executable, "-m", "venv", args.dir / "venv")
    call(bin / "pip", "install", "-q", "cmake", "ninja")
    source = args.dir / "llama.cpp"
    if not source.exists():
        fetch(args.dir, bin, source)
    build(args, bin, source)
    if not args.no_mlx:
        mlx = subprocess.run([bin / "pip", "install", "-q", "mlx[cpu]>=0.32.4", "mlx-lm"])
        if mlx.returncode != 0:
            print("mlx-lm cannot be installed here: there will be no comparison with it")


def fetch(folder, bin, source):
    call(bin / "pip", "download", "-q", "--no-deps", "--no-binary", BINDING, "-d", folder / "sdist", BINDING)
    (archive,) = (folder / "sdist").glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder / "sdist", filter="data")
    unpacked = folder / "sdist" / archive.name.removesuffix(".tar.gz")
    shutil.move(unpacked / "vendor/llama.cpp", source)
    (folder / "llama.cpp.version").write_text(f"vendored in {archive.name.removesuffix('.tar.gz')}\n")
    shutil.rmtree(folder / "sdist")


def build(args, bin, source):
    environment = os.environ | {"PATH": f"{bin}{os.pathsep}{os.environ['PATH']}"}
    folder = args.dir / "build"
    on = ["GGML_NATIVE"]
    off = ["LLAMA_CURL", "LLAMA_OPENSSL", "LLAMA_USE_PREBUILT_UI", "LLAMA_BUILD_APP"]
    off += [f"LLAMA_BUILD_{part}" for part in ["TESTS", "EXAMPLES", "UI"]]
    # The server takes as long to compile as all the rest.
    (on if args.server else off).append("LLAMA_BUILD_SERVER")
    options = [f"-D{name}=ON" for name in on] + [f"-D{name}=OFF" for name in off]
    call("cmake", "-S", source, "-B", folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", *options, env=environment)
    targets = ["llama-bench", *(["llama-server"] if args.server else [])]
    call("ninja", "-C", folder, f"-j{args.jobs}", *targets, env=environment)
    libraries = folder / "bin"
    link = [f"-L{libraries}", f"-Wl,-rpath,{libraries}", *(f"-l{name}" for name in LIBRARIES), "-lm"]
    include = [f"-I{source / 'include'}", f"-I{source / 'ggml/include'}"]
    here = Path(__file__).resolve().parent
    call("cc", "-O2", *include, here / "logits.c", "-o", folder / "logits", *link)


def call(*command, env=None):
    subprocess.run([str(part) for part in command], check=True, env=env)
