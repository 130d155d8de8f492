"""A claim on a port: one holder in the network namespace, seen by all, gone with its process however that ends."""

import subprocess
import sys
from pathlib import Path

from launch_runs import Runs, free_port, until

from firstlight.launch.supervisor.portclaim import CHOSEN, claim_port, claimed_ports

TABLE = Path("/proc/net/unix")
HOLD = """
import sys, time
from firstlight.launch.supervisor.portclaim import claim_port
held = claim_port(int(sys.argv[1]))
print(bool(held), flush=True)
time.sleep(600)
"""


def test_one_has_it_until_it_lets_go() -> None:
    port = free_port()
    first = claim_port(port)
    assert first is not None
    assert claim_port(port) is None
    assert port in claimed_ports(TABLE.read_bytes())
    first.release()
    again = claim_port(port)
    assert again is not None
    again.release()
    assert port not in claimed_ports(TABLE.read_bytes())


def test_a_choice_and_its_supervisor_do_not_stand_in_each_others_way() -> None:
    port = free_port()
    chosen, supervised = claim_port(port, CHOSEN), claim_port(port)
    assert chosen is not None
    assert supervised is not None
    chosen.release()
    assert port in claimed_ports(TABLE.read_bytes())
    supervised.release()


def test_a_killed_holder_holds_nothing() -> None:
    port = free_port()
    with subprocess.Popen([sys.executable, "-c", HOLD, str(port)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        assert claim_port(port) is None
        holder.kill()
    mine = claim_port(port)
    assert mine is not None
    mine.release()


def test_other_sockets_are_no_claims() -> None:
    rows = b"0: 2 0 0 2 1 77 @firstlight/port/8001\n0: 2 0 0 2 1 78 @firstlight/port/8002/chosen\n"
    others = b"0: 2 0 0 2 1 9 /run/firstlight/port/9000\n0: 2 0 0 2 1 9 @firstlight/port/none\n0: 2 0 0 2 1 9 @x\n0: 3 0 0 1 3 5\n"
    assert claimed_ports(rows + others) == {8001, 8002}
    assert claimed_ports(b"") == set()


def test_a_port_that_another_firstlight_is_about_to_use_is_in_use(runs: Runs) -> None:
    port = free_port()
    theirs = claim_port(port)
    assert theirs is not None
    refused = until(runs.start("plain", port=port), "failed")
    assert refused.data["reason"] == "port-in-use"
    assert f"port {port} is claimed by another firstlight" in refused.data["message"]
    theirs.release()
    client = runs.start("plain", port=port)
    until(client, "ready")
    assert claim_port(port) is None
    client.stop()
    again = runs.start("plain", port=port)
    assert until(again, "ready").data["port"] == port
