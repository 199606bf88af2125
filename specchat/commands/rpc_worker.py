"""`specchat rpc-worker`: lend this machine's devices to a specchat on another one."""

from __future__ import annotations

import ipaddress
import signal
import sys

import click

from specchat.errors import SpecchatError


@click.command("rpc-worker")
@click.option("--host", metavar="ADDRESS", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", metavar="N", type=click.IntRange(1, 65535), default=50052, show_default=True)
@click.option("--device", "devices", metavar="NAME[,NAME]", help="Devices to serve; else the GPUs, or else the CPU.")
@click.option(
    "-t", "--threads", metavar="N", type=click.IntRange(1, 1024), help="CPU threads; else the physical cores."
)
def command(host: str, port: int, devices: str | None, threads: int | None) -> None:
    """Serve this machine's devices to a specchat on another machine (its --rpc HOST:PORT), until Ctrl+C.

    The protocol has no authentication and no encryption: listen on another address than the loopback one only in a
    network where everybody is trusted, or through a tunnel (ssh -L 50052:localhost:50052 HOST).
    """
    from specchat.engine import remote
    from specchat.engine.threads import default_threads

    if not remote.supported():
        raise SpecchatError(remote.NO_RPC)
    click.echo("The protocol has no authentication: whoever reaches this port can use and read its memory.", err=True)
    if not _is_loopback(host):
        click.echo(f"WARNING: {host} is not a loopback address; other machines may reach it.", err=True)
    # Native code is waiting for connections: Python would never get to see the signal.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.stdout.flush()
    remote.serve(f"{host}:{port}", tuple(filter(None, (devices or "").split(","))), threads or default_threads())


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
