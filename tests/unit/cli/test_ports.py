from __future__ import annotations

import socket

import pytest

from rackgate_cli.controlplane.ports import LOOPBACK, await_free, is_free, reserved


def listen(port: int) -> socket.socket:
    """Listen as servers do: with SO_REUSEADDR."""
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((LOOPBACK, port))
    server.listen(1)
    return server


def test_the_owner_can_listen_on_a_port_that_is_still_held() -> None:
    with reserved({"etcd": None}) as ports, listen(ports["etcd"]):
        assert not is_free(ports["etcd"])


def test_no_one_else_is_given_a_held_port() -> None:
    wanted: dict[str, int | None] = {str(index): None for index in range(40)}
    with reserved(wanted) as first, reserved(wanted) as second:
        assert len({*first.values(), *second.values()}) == 80


def test_a_port_used_before_is_kept_when_it_is_free() -> None:
    with reserved({"etcd": None}) as ports:
        before = ports["etcd"]
    with reserved({"etcd": before}) as ports:
        assert ports == {"etcd": before}


def test_a_port_used_before_is_given_up_when_somebody_listens_there() -> None:
    with reserved({"etcd": None}) as ports:
        before = ports["etcd"]
    with listen(before), reserved({"etcd": before}) as ports:
        assert ports["etcd"] != before


def test_two_names_never_get_the_same_port() -> None:
    with reserved({"a": None}) as ports:
        before = ports["a"]
    with reserved({"a": before, "b": before}) as ports:
        assert ports["a"] != ports["b"]


def test_waiting_for_ports_names_the_busy_ones() -> None:
    with reserved({"a": None, "b": None}) as ports:
        with listen(ports["a"]):
            assert await_free(ports.values(), 0.05) == [ports["a"]]
        assert await_free(ports.values(), 60) == []


def test_no_outgoing_connection_is_given_the_port_of_a_process_that_restarts() -> None:
    with reserved(dict.fromkeys(map(str, range(40)))) as ports:
        # Linux gives connections ports from 32768, kube-proxy Services those from 30000.
        assert all(port < 30_000 for port in ports.values())


def test_a_machine_without_a_free_port_in_the_range_has_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with reserved({"a": None}) as held:
        (port,) = held.values()
        monkeypatch.setattr("rackgate_cli.controlplane.ports.RANGE", [port] * 200)
        with reserved({"b": None}) as ports:
            assert ports["b"] not in {port, 0}
