"""Creates virtual environments without installing pip into them.

Unpacking and compiling pip takes most of the time of `python -m venv`, and says nothing about
Holdfast. The `pip` of such an environment runs the one of the Python that it was created with.
"""

import subprocess
import sys
from pathlib import Path

_CREATE = """\
#!/bin/sh
# As {python}, but for the environments that it creates.
set -e
if [ "$1 $2" != "-m venv" ]; then
    exec "{python}" "$@"
fi
shift 2
"{python}" -m venv --without-pip "$@"
for folder; do :; done
printf '#!/bin/sh\\nexec "{python}" -m pip --python "%s/bin/python" "$@"\\n' "$folder" \\
    > "$folder/bin/pip"
chmod +x "$folder/bin/pip"
"""


def write_python(path: Path) -> None:
    """Write a program that is this Python outside of its virtual environment, with a cheaper
    `-m venv FOLDER`. A Python without such a pip is used as it is."""
    python = Path(sys.base_prefix, "bin", f"python{sys.version_info[0]}.{sys.version_info[1]}")
    tried = subprocess.run(
        [python, "-m", "pip", "--python", python, "--version"], capture_output=True, check=False
    )
    if tried.returncode != 0:
        path.symlink_to(python)
        return
    path.write_text(_CREATE.format(python=python))
    path.chmod(0o755)
