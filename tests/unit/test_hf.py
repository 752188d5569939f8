"""The script `./hf`: when it prepares, when it does not, and what a killed set-up leaves.

A stand-in for uv writes down what it is asked, so nothing is downloaded and each test takes
milliseconds.
"""

import ast
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.sources import ROOT
from tests.wait import wait_until

UV = """\
#!/bin/sh
echo "$*" >> uv.log
case "$*" in
  venv*) mkdir -p .venv/bin; ln -s {python} .venv/bin/python ;;
  "pip sync"*)
    if [ -e hang ]; then rm hang; echo > hanging; read line < gate; fi
    if [ -e broken ]; then echo "the index is gone"; exit 2; fi ;;
  "pip install"*)
    printf '#!/bin/sh\\necho "holdfast:" "$@"\\npwd\\n' > .venv/bin/holdfast
    chmod +x .venv/bin/holdfast ;;
esac
"""


@dataclass(frozen=True, slots=True)
class Clone:
    """A repository of its own with only what `./hf` needs."""

    path: Path

    def start(self, *arguments: str, cwd: Path | None = None) -> "subprocess.Popen[str]":
        environment = {**os.environ, "UV": str(self.path / "uv")}
        environment.pop("HF_INSTALLER", None)
        return subprocess.Popen(
            [sys.executable, self.path / "hf", *arguments],
            cwd=cwd or self.path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, cwd: Path | None = None) -> tuple[int, str, str]:
        process = self.start(*arguments, cwd=cwd)
        output, errors = process.communicate(timeout=60)
        return process.returncode, output, errors

    def asked(self) -> list[str]:
        """The calls of uv since the last time, without `--version`."""
        log = self.path / "uv.log"
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        verbs = [re.sub(r"(?<=\w) -.*", "", line) for line in lines]
        return [verb for verb in verbs if not verb.startswith("-")]


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    for name in ("hf", "pyproject.toml", "lock.txt", "lock-uv.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "src").mkdir()
    uv = tmp_path / "uv"
    uv.write_text(UV.format(python=sys.executable))
    uv.chmod(0o755)
    return Clone(tmp_path)


def test_the_first_run_prepares_and_the_second_starts_at_once(clone: Clone) -> None:
    status, output, errors = clone.run("jobs", "list", "--help")
    assert (status, output.splitlines()[0]) == (0, "holdfast: jobs list --help")
    assert "ready in" in errors
    assert clone.asked() == ["venv", "pip sync", "pip install"]
    status, output, errors = clone.run("jobs")
    assert (status, output.splitlines()[0], errors) == (0, "holdfast: jobs", "")
    assert clone.asked() == []


def test_the_product_runs_where_the_caller_is(clone: Clone, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert clone.run("jobs", cwd=elsewhere)[1].splitlines()[1] == str(elsewhere)


@pytest.mark.parametrize("name", ["lock.txt", "pyproject.toml"])
def test_a_changed_lock_is_installed_into_the_same_environment(clone: Clone, name: str) -> None:
    clone.run("jobs")
    clone.asked()
    with (clone.path / name).open("a") as file:
        file.write("# changed\n")
    assert clone.run("jobs")[0] == 0
    assert clone.asked() == ["pip sync", "pip install"]


def test_a_failed_set_up_shows_why_and_is_not_trusted(clone: Clone) -> None:
    (clone.path / "broken").touch()
    status, output, errors = clone.run("jobs")
    assert (status, output) == (1, "")
    assert "the index is gone" in errors
    assert errors.splitlines()[-1].startswith("hf: installing the packages in lock.txt failed.")
    (clone.path / "broken").unlink()
    clone.asked()
    assert clone.run("jobs")[0] == 0
    assert clone.asked() == ["venv", "pip sync", "pip install"]


def test_a_killed_set_up_is_not_trusted_and_its_installer_is_waited_for(clone: Clone) -> None:
    gate = clone.path / "gate"
    os.mkfifo(gate)
    (clone.path / "hang").touch()
    first = clone.start("jobs")
    await_path(clone.path / "hanging", first)
    first.send_signal(signal.SIGKILL)
    first.wait()
    second = clone.start("jobs")
    assert second.stderr is not None
    # The installer of the first still writes to .venv: the second must not start beside it.
    assert second.stderr.readline() == "hf: another ./hf is setting up .venv; waiting for it\n"
    assert clone.asked() == ["venv", "pip sync"]
    gate.write_text("go on\n")
    second.communicate(timeout=60)
    first.communicate(timeout=60)
    assert second.returncode == 0
    assert clone.asked() == ["venv", "pip sync", "pip install"]


def test_two_at_once_prepare_once(clone: Clone) -> None:
    both = [clone.start("jobs"), clone.start("jobs")]
    outputs = [process.communicate(timeout=60)[0] for process in both]
    assert [output.splitlines()[0] for output in outputs] == ["holdfast: jobs"] * 2
    assert clone.asked() == ["venv", "pip sync", "pip install"]


def test_tests_have_their_files_in_memory_or_where_they_are_told(
    clone: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    (clone.path / "pytest.py").write_text("import os; print(os.environ.get('TMPDIR'))")
    monkeypatch.setenv("TMPDIR", str(clone.path))
    assert clone.run("test", "some")[:2] == (0, f"{clone.path}\n")
    monkeypatch.delenv("TMPDIR")
    memory = Path("/dev/shm")
    has_room = memory.exists() and shutil.disk_usage(memory).free > 3 * 2**30
    can_run = has_room and not os.statvfs(memory).f_flag & os.ST_NOEXEC
    assert clone.run("test", "some")[:2] == (0, f"{memory if can_run else None}\n")


@pytest.mark.parametrize("failing", [False, True])
def test_all_tests_or_the_given_ones_run_in_workers(clone: Clone, failing: bool) -> None:
    says = "import sys; print(*sys.argv[1:]); sys.exit("
    (clone.path / "pytest.py").write_text(f"{says}{failing})")
    plugin = r"-p tests\.parallel"
    code, words, _ = clone.run("test")
    assert code == int(failing)
    assert re.fullmatch(rf"{plugin} --workers \d+", words.strip())
    _, words, _ = clone.run("test", "--workers=1", "tests/app")
    assert re.fullmatch(rf"{plugin} --workers=1 tests/app", words.strip())


def test_a_terminated_run_interrupts_the_tests(clone: Clone) -> None:
    """They clean up after that."""
    (clone.path / "pytest.py").write_text(
        "import pathlib, sys, time\n"
        "pathlib.Path('begun').touch()\n"
        "try: time.sleep(60)\n"
        "except KeyboardInterrupt: sys.exit('cleaned')\n"
    )
    process = clone.start("test")
    wait_until((clone.path / "begun").exists)
    process.terminate()
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "cleaned" in output + errors


def test_help_needs_no_environment(clone: Clone) -> None:
    bare, asked = clone.run(), clone.run("--help")
    assert bare == asked
    for command in ("test", "check", "docs", "bench", "torture", "lock", "COMMAND"):
        assert re.search(rf"\b{command}\b", bare[1])
    assert clone.asked() == []


def test_an_old_python_gets_one_clear_line() -> None:
    source = (ROOT / "hf").read_text()
    ast.parse(source, feature_version=(3, 7))
    disguise = f"import sys; sys.version_info = (3, 9, 2); exec({source!r})"
    result = subprocess.run(
        [sys.executable, "-c", disguise], capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    assert re.fullmatch(r"hf: Holdfast needs Python 3\.11 .* is Python 3\.9\. .*\n", result.stderr)


def test_only_the_standard_library_is_used() -> None:
    for node in ast.walk(ast.parse((ROOT / "hf").read_text())):
        if isinstance(node, ast.Import):
            assert {alias.name for alias in node.names} <= sys.stdlib_module_names
        if isinstance(node, ast.ImportFrom):
            assert str(node.module).partition(".")[0] in sys.stdlib_module_names


@pytest.mark.parametrize("is_right", [True, False])
def test_uv_is_installed_only_if_its_hash_is_right(clone: Clone, is_right: bool) -> None:
    wheel = clone.path / "wheels" / "uv-0.13.0-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        script = zipfile.ZipInfo("uv-0.13.0.data/scripts/uv")
        script.external_attr = 0o755 << 16
        archive.writestr(script, "#!/bin/sh\necho uv 0.13.0\n")
        about = "uv-0.13.0.dist-info"
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: uv\nVersion: 0.13.0\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    digest = hashlib.sha256(wheel.read_bytes() if is_right else b"another file").hexdigest()
    (clone.path / "lock-uv.txt").write_text(f"uv==0.13.0 --hash=sha256:{digest}\n")
    ran = subprocess.run(
        [sys.executable, "-c", _FIND_UV, clone.path],
        env={**os.environ, "UV": "", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheel.parent)}
        | {"PATH": "/usr/bin:/bin", "PIP_CONFIG_FILE": os.devnull, "PIP_EXTRA_INDEX_URL": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    private = clone.path / ".hf" / "tools" / "bin" / "uv"
    assert private.exists() is is_right
    assert ran.stdout.strip() == (str(private) if is_right else "None"), ran.stderr
    assert ("using pip instead" in ran.stderr) is not is_right


_FIND_UV = """
import importlib.machinery, importlib.util, shutil, sys
loader = importlib.machinery.SourceFileLoader("hf", sys.argv[1] + "/hf")
hf = importlib.util.module_from_spec(importlib.util.spec_from_loader("hf", loader))
loader.exec_module(hf)
hf.shutil.which = lambda name: None
with hf.setup_lock() as guard:
    print(hf.find_uv(guard))
"""


def test_the_lock_pins_every_dependency_by_hash_and_names_no_host() -> None:
    uv_lock = (ROOT / "lock-uv.txt").read_text()
    assert re.findall(r"(?m)^([\w-]+)==[\d.]+ \\$", uv_lock) == ["uv"]
    assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}", uv_lock)) > 10
    assert "://" not in uv_lock
    text = (ROOT / "lock.txt").read_text()
    assert "://" not in text
    assert str(ROOT) not in text
    pins = re.split(r"(?m)^(?=[a-z0-9])", text)[1:]
    assert all(re.match(r"[a-z0-9.-]+(\[[a-z,]+\])?==\S+", pin) for pin in pins)
    assert all("--hash=sha256:" in pin for pin in pins)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"].values()
    wanted = [project["project"]["dependencies"], *extras, project["dependency-groups"]["dev"]]
    names = {re.split(r"[\[<>=~;]", line)[0] for lines in wanted for line in lines}
    assert names <= {re.split(r"[\[=]", pin)[0] for pin in pins}


def await_path(path: Path, process: "subprocess.Popen[str]") -> None:
    while not path.exists():
        assert process.poll() is None, "it ended before it came so far"
        time.sleep(0.005)
