#!/usr/bin/env python3
"""make_wheel.py - puts the cinch program into a wheel, for `make wheel`. pip then installs it as a
command of the environment. The program may need no library other than glibc.

    python3 make_wheel.py PROGRAM VERSION FOLDER
"""
import base64
import hashlib
import pathlib
import re
import subprocess
import sys
import zipfile

OF_GLIBC = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux-x86-64.so.2"}
METADATA = """Metadata-Version: 2.1
Name: cinch
Version: {version}
Summary: Inference engine for large language models, for long outputs at high concurrency
License: Apache-2.0
Requires-Python: >=3.8
Description-Content-Type: text/markdown

The `cinch` program: answers files of prompts, or HTTP requests with OpenAI's API.

It needs a processor with x86-64-v3 and says so on an older one. It runs on the CPU. The CUDA backend
is one file, which is built from the source of the same version (CUDA 13; `make cuda` finds nvcc or
fetches it from PyPI):

    make cuda ARCH=x86-64-v3
    install -D build/cinch-cuda.so VENV/lib/cinch/cinch-cuda.so
"""


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def check_libraries(program):
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", output_of("readelf", "-d", program)))
    if needed - OF_GLIBC:
        sys.exit(f"make wheel: {program} needs {', '.join(sorted(needed - OF_GLIBC))}, which a wheel "
                 "cannot declare: build it with make wheel")


def platform_tag(program):
    """The tag of the newest version of glibc whose symbols the program uses."""
    versions = re.findall(r"GLIBC_2\.(\d+)", output_of("objdump", "-T", program))
    return f"manylinux_2_{max(map(int, versions))}_x86_64"


def record_line(name, data):
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"


def main():
    program, version, folder = sys.argv[1:]
    check_libraries(program)
    tag = f"py3-none-{platform_tag(program)}"
    info = f"cinch-{version}.dist-info"
    stripped = pathlib.Path(folder) / "cinch-stripped"
    stripped.parent.mkdir(exist_ok=True)
    subprocess.run(["strip", "-o", stripped, program], check=True)
    files = {
        f"cinch-{version}.data/scripts/cinch": stripped.read_bytes(),
        f"{info}/METADATA": METADATA.format(version=version).encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: cinch\nRoot-Is-Purelib: false\n"
                         f"Tag: {tag}\n".encode(),
        f"{info}/LICENSE": pathlib.Path("LICENSE").read_bytes(),
    }
    stripped.unlink()
    record = "".join(record_line(name, data) for name, data in files.items())
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    wheel = pathlib.Path(folder) / f"cinch-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as z:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (0o100755 if name.endswith("/cinch") else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            z.writestr(entry, data)
    print(wheel)


if __name__ == "__main__":
    main()
