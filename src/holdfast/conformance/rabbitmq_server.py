"""PrivateRabbitMQ: a RabbitMQ broker that a test creates, kills, restarts and removes.

Broker and epmd listen on 127.0.0.1 only, with a cookie and a node of their own. Virtual hosts,
users and policies are made by `RabbitNode` in milliseconds, from any process.
"""

import json
import re
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from urllib.parse import quote

from holdfast.conformance.private_server import POLL_S, START_S_MAX, PrivateServer, free_ports
from holdfast.conformance.rabbitmq_packages import RabbitPrograms, find_programs

NODE = "holdfast@localhost"
_PROTOCOL = b"AMQP\0\0\x09\x01"
_IO_S_MAX = 10.0


class TlsFiles(NamedTuple):
    """The broker's certificate and key; clients may show a certificate that `ca` signed."""

    ca: Path
    certificate: Path
    key: Path


class RabbitNode(NamedTuple):
    """How to reach a private broker. Plain data, so that other processes can use it too."""

    port: int
    epmd_port: int
    cookie: str
    erlang: str
    tls_port: int | None = None
    ca: str | None = None
    """The certificate of the authority that signed the broker's own."""

    def url(self, vhost: str = "/", user: str = "guest", password: str = "guest") -> str:
        return _url("amqp", self.port, vhost, user, password)

    def tls_url(self, vhost: str = "/", user: str = "guest", password: str = "guest") -> str:
        assert self.tls_port is not None, "the broker has no TLS listener"
        return _url("amqps", self.tls_port, vhost, user, password)

    def add_vhost(self, name: str) -> str:
        """Add a virtual host of which guest may use everything; returns guest's URL of it."""
        self._do("rabbit_vhost:add", name)
        self.permit("guest", name)
        return self.url(name)

    def delete_vhost(self, name: str) -> None:
        self._do("rabbit_vhost:delete", name)

    def add_user(self, name: str, password: str) -> None:
        """Add a user, who may do nothing before `permit`."""
        self._do("rabbit_auth_backend_internal:add_user", name, password)

    def permit(
        self, user: str, vhost: str, configure: str = ".*", write: str = ".*", read: str = ".*"
    ) -> None:
        """Give a user permissions in a virtual host; each is a regular expression of names."""
        call = "rabbit_auth_backend_internal:set_permissions"
        self._do(call, user, vhost, configure, write, read)

    def set_policy(
        self, vhost: str, name: str, pattern: str, definition: Mapping[str, Any]
    ) -> None:
        """Apply settings such as {"message-ttl": 1000} to the queues that match the pattern."""
        rule = json.dumps(definition)
        self._do("rabbit_policy:parse_set", vhost, name, pattern, rule, 0, "queues")

    def clear_policy(self, vhost: str, name: str) -> None:
        self._do("rabbit_policy:delete", vhost, name)

    def flush(self) -> None:
        """Write the list of quorum queues to disk. RabbitMQ 3.10 does so half a second after a
        change; one killed before that has lost a new queue's messages, even confirmed ones, and
        after its start the queue has no leader and answers nobody."""
        self.evaluate("[ok = dets:sync(Table) || Table <- dets:all()]")

    def depth(self, vhost: str, queue: str) -> int:
        """The messages of a queue, those included that are delivered and not acknowledged. A quorum
        queue is asked itself, because its published counts are seconds old. Just after a restart it
        may not have applied all of its log, and answer too low a number."""
        name = f"rabbit_misc:r({_term(vhost)},queue,{_term(queue)})"
        total = "ra:leader_query(amqqueue:get_pid(Q),fun rabbit_fifo:query_messages_total/1)"
        count = "element(2,hd(rabbit_amqqueue:info(Q,[messages])))"
        return int(
            self.evaluate(
                f"{{ok,Q}}=rabbit_amqqueue:lookup({name}),case amqqueue:get_type(Q) of"
                f" rabbit_quorum_queue->element(2,element(2,{total}));_->{count} end"
            )
        )

    def evaluate(self, expression: str) -> str:
        """Evaluate an Erlang expression in the broker; returns the value as text."""
        # A name of its own: the broker refuses a second caller that has the name of the first.
        name = f"call{secrets.token_hex(6)}"
        command = [f"{self.erlang}/erl_call", "-h", name, "-n", NODE, "-c", self.cookie, "-e"]
        result = subprocess.run(
            command,
            input=f"{expression}.\n",
            env={"ERL_EPMD_PORT": str(self.epmd_port), "HOME": "/nonexistent"},
            capture_output=True,
            text=True,
            check=False,
            timeout=START_S_MAX,
        )
        value = result.stdout.strip()
        if result.returncode != 0 or not value.startswith("{ok, "):
            output = f"{value} {result.stderr.strip()}".strip()
            raise RuntimeError(f"RabbitMQ could not evaluate {expression}: {output}")
        return value.removeprefix("{ok, ").removesuffix("}")

    def _do(self, function: str, *arguments: str | int) -> None:
        # The last argument names who did it, for the broker's log.
        terms = ",".join(map(_term, (*arguments, "holdfast")))
        if (value := self.evaluate(f"{function}({terms})")) != "ok":
            raise RuntimeError(f"RabbitMQ refused {function}{arguments}: {value}")


class PrivateRabbitMQ(PrivateServer):
    """One broker in a directory of its own; `url` stays the same across `kill` and `restart`.

    `settings` are further lines of rabbitmq.conf. `tls` adds a listener for amqps://; it is called
    with a folder for its files, which is removed with the broker.
    """

    title = "RabbitMQ"
    graceful = signal.SIGTERM
    immediate = signal.SIGKILL
    # A port, or the port of epmd, was taken by another since it was chosen.
    transient: ClassVar[tuple[str, ...]] = (
        "eaddrinuse",
        "dist_port_already_used",
        "nodistribution",
    )

    def __init__(
        self,
        *,
        settings: Mapping[str, str] | None = None,
        tls: Callable[[Path], TlsFiles] | None = None,
    ) -> None:
        super().__init__()
        self._programs: RabbitPrograms = find_programs()
        self._settings = dict(settings or {})
        self._make_tls = tls
        self._tls_files: TlsFiles | None = None
        self._tls_port = self._epmd_port = self._cluster_port = 0
        self._cookie = secrets.token_hex(16)

    @property
    def url(self) -> str:
        return self.node.url()

    @property
    def node(self) -> RabbitNode:
        return RabbitNode(
            port=self._port,
            epmd_port=self._epmd_port,
            cookie=self._cookie,
            erlang=str(self._programs.erlang),
            tls_port=self._tls_port if self._tls_files else None,
            ca=str(self._tls_files.ca) if self._tls_files else None,
        )

    def _create(self, directory: Path) -> None:
        (directory / "plugins").write_text("[].\n")
        (directory / "environment").write_text("")
        cookie = directory / ".erlang.cookie"
        cookie.write_text(self._cookie)
        cookie.chmod(0o400)
        if self._make_tls is not None:
            folder = directory / "tls"
            folder.mkdir()
            self._tls_files = self._make_tls(folder)

    def _choose_address(self, directory: Path) -> None:
        self._port, self._tls_port, self._epmd_port, self._cluster_port = free_ports(4)
        settings = {
            "listeners.tcp.1": f"127.0.0.1:{self._port}",
            "disk_free_limit.absolute": "50MB",
            **(self._tls_settings(self._tls_files) if self._tls_files else {}),
            **self._settings,
        }
        lines = [f"{name} = {value}\n" for name, value in settings.items()]
        (directory / "rabbitmq.conf").write_text("".join(lines))
        while self._helpers:
            epmd = self._helpers.pop()
            epmd.kill()
            epmd.wait()

    def _tls_settings(self, tls: TlsFiles) -> dict[str, str]:
        return {
            "listeners.ssl.1": f"127.0.0.1:{self._tls_port}",
            "ssl_options.cacertfile": str(tls.ca),
            "ssl_options.certfile": str(tls.certificate),
            "ssl_options.keyfile": str(tls.key),
            "ssl_options.verify": "verify_peer",
            "ssl_options.fail_if_no_peer_cert": "false",
        }

    def _try_launch(self, directory: Path, deadline: float) -> bool:
        return self._run_epmd(directory, deadline) and super()._try_launch(directory, deadline)

    def _run_epmd(self, directory: Path, deadline: float) -> bool:
        """In the foreground: one that the broker starts becomes a daemon and outlives it."""
        if not self._helpers or self._helpers[-1].poll() is not None:
            program = self._programs.erlang / "epmd"
            address = ["-port", str(self._epmd_port), "-address", "127.0.0.1"]
            self._helpers.append(self._spawn(directory, [program, *address]))
        while not _answers(self._epmd_port):
            if self._helpers[-1].poll() is not None or time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        return True

    def _command(self, directory: Path) -> list[Path]:
        return [self._programs.server]

    def _environment(self, directory: Path) -> Mapping[str, str]:
        data = directory / "data"
        # Without the spinning of idle schedulers, which takes the cores from the tests.
        flags = "+sbwt none +sbwtdcpu none +sbwtdio none"
        flags += " -kernel inet_dist_use_interface {127,0,0,1}"
        return {
            "PATH": f"{self._programs.erlang}:/usr/bin:/bin",
            "HOME": str(directory),
            "LANG": "C.UTF-8",
            "ERL_CRASH_DUMP_BYTES": "0",
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._epmd_port),
            # The script becomes the broker, instead of waiting for it.
            "RUNNING_UNDER_SYSTEMD": "true",
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(directory / "advanced.config"),
            "RABBITMQ_CONF_ENV_FILE": str(directory / "environment"),
            "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
            "RABBITMQ_CONFIG_FILES": str(directory / "conf.d"),
            "RABBITMQ_DIST_PORT": str(self._cluster_port),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(data / "config"),
            "RABBITMQ_LOG_BASE": str(data / "log"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_MNESIA_BASE": str(data),
            "RABBITMQ_NODENAME": NODE,
            "RABBITMQ_PID_FILE": str(directory / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": flags,
        }

    def _complaint(self, log: str) -> str:
        """The first errors: hundreds of lines about their consequences follow."""
        lines = re.findall(r"(?m)^.{,40} \[error\] <[0-9.]+> *(.+)", log)
        return " ".join(lines)[:1000] or super()._complaint(log)

    def _is_ready(self, directory: Path) -> bool:
        return _answers(self._port, _PROTOCOL)


def _answers(port: int, hello: bytes = b"") -> bool:
    """Whether something listens there; if a greeting is given, whether it is answered."""
    try:
        with socket.create_connection(("127.0.0.1", port), _IO_S_MAX) as connection:
            connection.sendall(hello)
            # The first octet of a method frame: the broker's start of the connection.
            return not hello or connection.recv(1) == b"\x01"
    except OSError:
        return False


def _term(value: str | int) -> str:
    """An Erlang term. The bytes of a text are given as numbers: nothing needs to be escaped."""
    return str(value) if isinstance(value, int) else f"<<{','.join(map(str, value.encode()))}>>"


def _url(scheme: str, port: int, vhost: str, user: str, password: str) -> str:
    account = f"{quote(user, safe='')}:{quote(password, safe='')}"
    return f"{scheme}://{account}@127.0.0.1:{port}/{quote(vhost, safe='')}"
