"""Finds RabbitMQ: an installed one, else Debian's packages extracted into a cache, without root."""

import re
from pathlib import Path
from typing import NamedTuple

from holdfast.conformance import debian_packages
from holdfast.conformance.debian_packages import Apt, PackagedProgram, cache_folder

INSTALLED = Path("/usr/lib/rabbitmq/bin")
ERLANG = Path("/usr/lib/erlang/bin")


class RabbitPrograms(NamedTuple):
    """`server` is the script that starts RabbitMQ, `erlang` the folder of erl and epmd."""

    server: Path
    erlang: Path


def find_programs(cache: Path | None = None) -> RabbitPrograms:
    """The programs of RabbitMQ; raises ServiceUnavailable with the reason where there are none."""
    if (INSTALLED / "rabbitmq-server").exists() and (ERLANG / "erl_call").exists():
        return RabbitPrograms(INSTALLED / "rabbitmq-server", ERLANG)
    tree = extract(cache or cache_folder()) / "usr" / "lib"
    return RabbitPrograms(tree / "rabbitmq" / "bin" / "rabbitmq-server", tree / "erlang" / "bin")


def extract(cache: Path) -> Path:
    """The folder with the extracted packages of RabbitMQ and Erlang. Raises ServiceUnavailable."""
    return debian_packages.extract(_RABBITMQ, cache)


def _needed(apt: Apt) -> list[str]:
    """RabbitMQ and all of Erlang that it needs. Other packages are on every system, or are
    for the service, which is not started."""
    kinds = "recommends suggests conflicts breaks replaces enhances".split()
    options = [f"--no-{kind}" for kind in kinds]
    found = apt("apt-cache", "depends", "--recurse", *options, "rabbitmq-server")
    return sorted(set(re.findall(r"(?m)^(?:erlang-[a-z0-9-]+|rabbitmq-server)$", found)))


def _finish(tree: Path, apt: Apt) -> None:
    erl = tree / "usr/lib/erlang/bin/erl"
    _make_movable(erl)
    apt.call([erl, "-noinput", "-eval", "ok = crypto:start(), halt()."])


def _make_movable(script: Path) -> None:
    """Debian's erl names its folder; let it look where it is."""
    found = '"$(dirname "$(dirname "$(readlink -f "$0")")")"'
    script.write_text(script.read_text().replace("ROOTDIR=/usr/lib/erlang", f"ROOTDIR={found}"))


_RABBITMQ = PackagedProgram(
    title="RabbitMQ",
    name="rabbitmq",
    remedy="Install the package rabbitmq-server, whose service need not run.",
    choose=_needed,
    finish=_finish,
)
