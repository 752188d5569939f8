"""RabbitMQ's packages are extracted once, whoever is killed meanwhile, and a failure says why."""

import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from holdfast.conformance import rabbitmq_packages
from holdfast.conformance.debian_packages import main_worktree
from holdfast.conformance.private_server import ServiceUnavailable
from holdfast.conformance.rabbitmq_packages import extract, find_programs
from tests.wait import wait_until

EXTRACT = """
import sys
from pathlib import Path
from holdfast.conformance.rabbitmq_packages import extract
print(extract(Path(sys.argv[1])))
"""
APT_GET = """
case "$*" in
  *" update") echo update >> $CALLS ;;
  *--print-uris*)
    echo "'https://host/erlang-base.deb' erlang-base_2.deb 3 SHA256:00"
    echo "'https://host/rabbitmq-server.deb' rabbitmq-server_2.deb 3 SHA256:00" ;;
  *" download "*) touch erlang-base_2.deb rabbitmq-server_2.deb ;;
esac
"""
APT_CACHE = """
printf '%s\\n' rabbitmq-server '  Depends: erlang-base' erlang-base '<erlang-abi>' perl
"""
DPKG = """
mkdir -p "$3/usr/lib/erlang/bin"
touch "$3/${2##*/}"
cat > "$3/usr/lib/erlang/bin/erl" <<'END'
#!/bin/sh
ROOTDIR=/usr/lib/erlang
test -x "$ROOTDIR/bin/erl" || exit 1
echo "$ROOTDIR"
END
chmod +x "$3/usr/lib/erlang/bin/erl"
"""
HANGS = """
touch "$3.started"
read -r line < "$GATE"
"""


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs in the place of apt and dpkg, before all others on PATH."""
    folder = tmp_path / "tools"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("GATE", str(tmp_path / "gate"))
    os.mkfifo(tmp_path / "gate")
    for name, script in (("apt-get", APT_GET), ("apt-cache", APT_CACHE), ("dpkg", DPKG)):
        write(folder / name, script)
    return folder


def write(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}")
    path.chmod(0o755)


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_the_packages_are_extracted_and_can_be_moved(tools: Path, tmp_path: Path) -> None:
    tree = extract(tmp_path / "cache")
    assert names_in(tree) == {"usr", "erlang-base_2.deb", "rabbitmq-server_2.deb"}
    assert names_in(tmp_path / "cache") == {tree.name, "rabbitmq.lock"}
    moved = tree.rename(tmp_path / "moved") / "usr/lib/erlang"
    erl = subprocess.run([moved / "bin/erl"], capture_output=True, text=True, check=True)
    assert erl.stdout.strip() == str(moved)


def test_processes_share_one_extraction(tools: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", EXTRACT, str(tmp_path / "cache")]
    asked = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(3)]
    assert len({process.communicate()[0] for process in asked}) == 1
    assert [process.returncode for process in asked] == [0, 0, 0]
    assert (tmp_path / "calls").read_text() == "update\n"


def test_a_killed_extraction_is_not_trusted(tools: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    write(tools / "dpkg", DPKG + HANGS)
    command = [sys.executable, "-c", EXTRACT, str(cache)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as owner:
        wait_until(lambda: list(cache.glob("*.started")))
        owner.kill()
    [draft] = cache.glob("*.new")
    (draft / "stale").touch()
    # A process that it started still writes, so that the next one must wait for it.
    with (cache / "rabbitmq.lock").open("w") as guard, pytest.raises(BlockingIOError):
        fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)

    write(tools / "dpkg", DPKG)
    found = list[Path]()
    waiting = threading.Thread(target=lambda: found.append(extract(cache)))
    waiting.start()
    with (tmp_path / "gate").open("w") as gate:
        gate.write("\n")
    waiting.join()
    assert names_in(found[0]) == {"usr", "erlang-base_2.deb", "rabbitmq-server_2.deb"}
    assert not draft.exists()


def test_files_of_an_older_version_are_left_out(tools: Path, tmp_path: Path) -> None:
    left = tmp_path / "cache" / "rabbitmq-apt" / "files"
    left.mkdir(parents=True)
    (left / "erlang-base_1.deb").touch()
    assert "erlang-base_1.deb" not in names_in(extract(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("tool", "script", "reason"),
    [
        ("apt-cache", "echo 'E: No packages found'; exit 100", "No packages found; W: no route"),
        ("apt-get", "echo 'E: disk is full'; exit 100", "disk is full"),
        ("dpkg", "echo 'the archive is damaged'; exit 2", "the archive is damaged"),
        ("dpkg", DPKG.replace('echo "$ROOTDIR"', "echo no libcrypto; exit 1"), "no libcrypto"),
    ],
)
def test_a_failure_says_why_and_leaves_no_tree(
    tools: Path, tmp_path: Path, tool: str, script: str, reason: str
) -> None:
    if tool == "apt-cache":
        write(tools / "apt-get", "echo 'Reading lists'; echo 'W: no route to the host'")
    write(tools / tool, script)
    with pytest.raises(ServiceUnavailable, match=reason) as raised:
        extract(tmp_path / "cache")
    assert "Install the package rabbitmq-server" in str(raised.value)
    left = names_in(tmp_path / "cache") - {"rabbitmq.lock", "rabbitmq-apt"}
    assert all(name.endswith(".new") for name in left)

    for name, working in (("apt-get", APT_GET), ("apt-cache", APT_CACHE), ("dpkg", DPKG)):
        write(tools / name, working)
    assert (extract(tmp_path / "cache") / "usr").exists()


def test_another_system_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(rabbitmq_packages, "INSTALLED", tmp_path)
    with pytest.raises(ServiceUnavailable, match=r"no apt-get and no dpkg .* Install the package"):
        find_programs(tmp_path / "cache")


def test_a_cache_that_cannot_be_written_says_so(tools: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    with pytest.raises(ServiceUnavailable, match=r"cannot be extracted: .*cache"):
        extract(tmp_path / "cache")


def test_an_installed_one_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("rabbitmq-server", "erl_call"):
        (tmp_path / name).touch()
    monkeypatch.setattr(rabbitmq_packages, "INSTALLED", tmp_path)
    monkeypatch.setattr(rabbitmq_packages, "ERLANG", tmp_path)
    assert find_programs(tmp_path / "cache") == (tmp_path / "rabbitmq-server", tmp_path)


def test_worktrees_share_the_cache(tmp_path: Path) -> None:
    main, other = tmp_path / "main", tmp_path / "other"
    for folder in (main / ".git" / "worktrees" / "other", other):
        folder.mkdir(parents=True)
    (main / "hf").touch()
    (other / ".git").write_text(f"gitdir: {main}/.git/worktrees/other\n")
    assert main_worktree(other) == main
    assert main_worktree(main) == main
    (other / ".git").write_text("gitdir: ../elsewhere/.git/modules/other\n")
    assert main_worktree(other) == other
