#!/usr/bin/python3
"""What the server costs: the round trip of an empty unary call over a unix socket, the processor
time of one, the memory of an idle connection that was used. Prints JSON.

    rpc_bench.py RPC_PEER
"""
import json
import os
import resource
import socket
import struct
import subprocess
import sys
import tempfile
import time

ROUNDS, IDLE = 20000, 500
BODY = (b"\x0a\x17containerd.task.v2.Task" b"\x12\x07Connect" b"\x1a\x04\x0a\x02c1")
ANSWER = 18  # bytes


def connect(path):
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(path)
    return sock


def call(sock, stream):
    start = time.perf_counter()
    sock.sendall(struct.pack(">IIBB", len(BODY), stream, 1, 0) + BODY)
    answer = sock.recv(100)
    if len(answer) != ANSWER:
        raise SystemExit(f"unexpected answer: {answer.hex()}")
    return time.perf_counter() - start


def private_kib(pid):
    """Memory that no other process shares."""
    with open(f"/proc/{pid}/smaps_rollup") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("Private_Dirty:"))


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as f:
        user, system = f.read().rsplit(")", 1)[1].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def main():
    # Both sides: the server inherits it.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4 * IDLE), hard))
    with tempfile.TemporaryDirectory(prefix="lcow-rpc.") as folder:
        path = os.path.join(folder, "s")
        server = subprocess.Popen([sys.argv[1], "serve", path], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE)
        server.stdout.readline()
        sock = connect(path)
        times = sorted(call(sock, 2 * n + 1) for n in range(ROUNDS))
        cpu = cpu_seconds(server.pid)
        before = private_kib(server.pid)
        idle = [connect(path) for _ in range(IDLE)]
        for s in idle:
            call(s, 1)
            call(s, 3)
        after = private_kib(server.pid)
        server.stdin.close()
        server.wait()
    json.dump({"unary_round_trip_us": {"median": round(times[ROUNDS // 2] * 1e6, 1),
                                       "p99": round(times[ROUNDS * 99 // 100] * 1e6, 1)},
               "server_cpu_per_call_us": round(cpu * 1e6 / ROUNDS, 1),
               "idle_connection_bytes": (after - before) * 1024 // IDLE,
               "server_private_kib": before}, sys.stdout)
    print()


if __name__ == "__main__":
    main()
