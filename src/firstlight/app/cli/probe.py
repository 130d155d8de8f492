"""`firstlight probe`: what this machine has, or another one behind ssh."""

import click
import msgspec

from firstlight.app.output import emit, output_option


@click.command(short_help="what this machine has")
@click.argument("paths", nargs=-1, metavar="[PATH...]")
@click.option("--host", default="local", show_default=True, metavar="HOST", help="local, or ssh://USER@HOST.")
@click.option("--engine-python", metavar="PATH", help="Another interpreter to ask for engines.")
@click.option("--no-engines", is_flag=True, help="Do not look for engines.")
@click.option(
    "--read-speed",
    is_flag=True,
    help="Measure how fast each PATH reads (direct I/O, at most 1 GiB, 3 s) and, without a GPU, how fast memory is.",
)
@click.option("--peer-copies", is_flag=True, help="Copy between idle GPUs and compare what arrives (64 MiB on each).")
@click.option("--all-reduce", is_flag=True, help="Time a short all-reduce under a few NCCL settings (idle GPUs, seconds each).")
@click.option("--raw", metavar="FOLDER", help="Keep each command's own text there, a file a fact.")
@output_option
def command(
    paths: tuple[str, ...],
    host: str,
    engine_python: str | None,
    no_engines: bool,
    read_speed: bool,
    peer_copies: bool,
    all_reduce: bool,
    raw: str | None,
    output: str,
) -> int:
    """GPUs, links, memory, limits, ports, disks under PATH, engines. Needs nothing on the target but POSIX sh."""
    from firstlight.app.looking import engine_hints, find_here
    from firstlight.app.views.machine import save_raw, show_machine
    from firstlight.probe.hosts import open_host
    from firstlight.probe.machine import measure_collectives, probe_machine

    where, texts = open_host(host), dict[str, str]()
    machine = probe_machine(where, paths=paths, raw=texts, measure_reads=read_speed, test_peers=peer_copies)
    if not no_engines:
        machine = msgspec.structs.replace(machine, engines=find_here(where, engine_hints(where, engine_python)))
    if all_reduce:
        machine = measure_collectives(where, machine, python=engine_python, raw=texts)
    save_raw(raw, texts)
    emit(machine, output, lambda: show_machine(machine))
    return 0
