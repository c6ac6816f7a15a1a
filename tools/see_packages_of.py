"""Let the packages of another Python be found here: `.venv/bin/python tools/see_packages_of.py python3`.

A venv with --system-site-packages sees those of the Python it was made from at the very bottom, which are not those of
a venv or a conda environment in between.
"""

import subprocess
import sys
import sysconfig
from pathlib import Path

ASK = "import sysconfig; print(*dict.fromkeys(sysconfig.get_path(p) for p in ('purelib', 'platlib')), sep='\\n')"


def main(python: str) -> None:
    folders = subprocess.run([python, "-c", ASK], capture_output=True, text=True, check=True).stdout
    Path(sysconfig.get_path("purelib"), "packages_of_python.pth").write_text(folders, encoding="utf-8")
    print(f"using the torch of {python} and the libraries beside it")


if __name__ == "__main__":
    main(sys.argv[1])
