"""python3 build_wheel.py FOLDER: writes the wheel of this package. It is the backend of pip (PEP 517) too, so that pip
needs no other package."""

import base64
import hashlib
import pathlib
import re
import sys
import zipfile

HERE = pathlib.Path(__file__).resolve().parent


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    project = dict(re.findall(r'^([a-z-]+) = "(.*)"$', (HERE / "pyproject.toml").read_text(), re.MULTILINE))
    name = f"{project['name']}-{project['version']}"
    files = {
        "blackholed/" + p.name: p.read_bytes()
        for p in sorted((HERE / "blackholed").iterdir()) if p.suffix in (".py", ".typed")
    }
    info = f"{name}.dist-info/"
    files[info + "METADATA"] = (
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        f"Summary: {project['description']}\nLicense: Apache-2.0\nRequires-Python: {project['requires-python']}\n"
        "Description-Content-Type: text/markdown\n\n"
        + (HERE / "README.md").read_text()
    ).encode()
    files[info + "WHEEL"] = b"Wheel-Version: 1.0\nGenerator: blackholed\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = ""
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        record += f"{path},sha256={digest},{len(data)}\n"
    files[info + "RECORD"] = (record + info + "RECORD,,\n").encode()
    wheel = f"{name}-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(wheel_directory) / wheel, "w", zipfile.ZIP_DEFLATED) as out:
        for path, data in files.items():
            out.writestr(zipfile.ZipInfo(path), data)  # of 1980: the same files make the same wheel
    return wheel


if __name__ == "__main__":
    print(build_wheel(sys.argv[1]))
