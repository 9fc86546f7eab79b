#!/usr/bin/python3
"""The server and the client against a peer that shares no code with them: frames and messages are
put together here by hand, as in appendix B of docs/reference/containerd-contract.md. Prints TAP.

    rpc_peer_test.py RPC_PEER
"""
import os
import socket
import struct
import subprocess
import sys
import tempfile

REQUEST, RESPONSE, DATA = 1, 2, 3
TASK2, TASK3 = "containerd.task.v2.Task", "containerd.task.v3.Task"
STREAMING = "containerd.services.streaming.v1.Streaming"
NAMESPACE = [("containerd-namespace-ttrpc", "default")]


def varint(n):
    n &= (1 << 64) - 1
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def number(field, n):
    return varint(field << 3) + varint(n) if n else b""


def message(field, data):
    data = data.encode() if isinstance(data, str) else data
    return varint(field << 3 | 2) + varint(len(data)) + data


def text(field, s):
    return message(field, s) if s else b""


def any_of(url, value):
    return text(1, url) + text(2, value)


def request(service, method, payload=b"", timeout=0, metadata=()):
    return (text(1, service) + text(2, method) + text(3, payload) + number(4, timeout) +
            b"".join(message(5, text(1, k) + text(2, v)) for k, v in metadata))


def fields(data):
    """{number: [value]} of a message; its own reader."""
    out, i = {}, 0

    def read():
        nonlocal i
        n = shift = 0
        while True:
            n |= (data[i] & 127) << shift
            shift += 7
            i += 1
            if data[i - 1] < 128:
                return n

    while i < len(data):
        tag = read()
        if tag & 7 == 0:
            value = read()
        elif tag & 7 == 2:
            size = read()
            value, i = data[i:i + size], i + size
        else:
            raise ValueError(f"wire type {tag & 7}")
        out.setdefault(tag >> 3, []).append(value)
    return out


class Conn:
    def __init__(self, sock):
        self.sock = sock
        self.sock.settimeout(60)

    def send(self, stream, kind, flags, body):
        self.sock.sendall(struct.pack(">IIBB", len(body), stream, kind, flags) + body)

    def read(self, n):
        data = b""
        while len(data) < n:
            more = self.sock.recv(n - len(data))
            if not more:
                raise EOFError
            data += more
        return data

    def recv(self):
        size, stream, kind, flags = struct.unpack(">IIBB", self.read(10))
        return stream, kind, flags, self.read(size)

    def answer(self):
        """stream, code, text, payload of the next response"""
        stream, kind, flags, body = self.recv()
        assert (kind, flags) == (RESPONSE, 0), (kind, flags)
        response = fields(body)
        status = fields(response.get(1, [b""])[0])
        self.reason = response.get(1000, [b""])[0].decode()
        return (stream, status.get(1, [0])[0], status.get(2, [b""])[0].decode(),
                response.get(2, [b""])[0])


class Server:
    """Our server as a process."""

    def __init__(self, peer, path):
        self.path = path
        self.process = subprocess.Popen([peer, "serve", f"unix://{path}"], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self.process.stdout.readline() == b"ready\n"

    def connect(self):
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(self.path)
        return Conn(sock)

    def stop(self):
        self.process.stdin.close()
        assert self.process.wait(10) == 0
        self.process.stdout.close()


def test_unary_calls_under_both_names(server, conn):
    for stream, service in ((1, TASK2), (3, TASK3)):
        conn.send(stream, REQUEST, 0, request(service, "Connect", text(1, "c1"), 0, NAMESPACE))
        assert conn.answer() == (stream, 0, "", number(1, 4242) + number(2, 4343))


def test_errors_carry_code_and_text(server, conn):
    conn.send(1, REQUEST, 0, request(TASK2, "Kill", text(1, "x") + number(3, 9)))
    stream, code, message, body = conn.answer()
    assert (stream, code, body) == (1, 5, b"") and message and not conn.reason
    conn.send(3, REQUEST, 0, request(TASK2, "State", text(1, "gone")))
    assert conn.answer()[:2] == (3, 5) and conn.reason == "NOT_FOUND"
    conn.send(5, REQUEST, 0, request("a.b.C", "D"))
    stream, code, message, _ = conn.answer()
    assert (stream, code) == (5, 12) and "a.b.C" in message
    conn.send(9, REQUEST, 0, request(TASK2, "Fly"))
    stream, code, message, _ = conn.answer()
    assert (stream, code) == (9, 12) and "Fly" in message


def test_metadata_and_unknown_fields_are_accepted(server, conn):
    payload = message(77, "what") + text(1, "c1") + number(78, 5)
    conn.send(1, REQUEST, 0, message(99, "later") + request(TASK3, "State", payload, 0, NAMESPACE))
    assert conn.answer() == (1, 0, "", text(1, "c1"))


def test_a_timeout_is_kept(server, conn):
    conn.send(1, REQUEST, 0, request(TASK2, "Wait", text(1, "c1"), 20_000_000))
    assert conn.answer()[:2] == (1, 4)
    conn.send(3, REQUEST, 0, request(TASK2, "Wait", text(1, "c1"), -1))
    assert conn.answer()[:2] == (3, 4)


def test_a_client_that_opens_a_stream_is_refused(server, conn):
    conn.send(1, REQUEST, 2, request(STREAMING, "Stream"))
    assert conn.answer() == (1, 12, "service " + STREAMING, b"")
    conn.send(1, DATA, 0, any_of("containerd.services.streaming.v1.StreamInit", text(1, "c1-stdout")))
    assert conn.answer()[:2] == (1, 3)
    conn.send(3, REQUEST, 2, request(TASK3, "Connect", text(1, "c1")))
    assert conn.answer() == (3, 12, "method Connect is not a stream", b"")
    conn.send(5, REQUEST, 0, request(TASK3, "Connect", text(1, "c1")))
    assert conn.answer()[:2] == (5, 0)


def test_an_oversized_frame_costs_one_answer(server, conn):
    conn.send(1, REQUEST, 0, bytes(4 * 1024 * 1024 + 1))
    assert conn.answer()[:2] == (1, 8)
    conn.send(1, REQUEST, 0, request(TASK2, "Connect"))
    assert conn.answer()[:2] == (1, 0)


def test_pipelined_requests_are_answered_in_any_order(server, conn):
    for stream in range(1, 201, 2):
        conn.send(stream, REQUEST, 0, request(TASK2, "Wait" if stream % 4 == 1 else "Connect"))
    assert sorted(conn.answer()[0] for _ in range(50)) == list(range(3, 201, 4))
    server.process.stdin.write(b"x")
    server.process.stdin.flush()
    assert sorted(conn.answer()[0] for _ in range(50)) == list(range(1, 201, 4))


def test_connections_that_say_nothing_or_half(server, conn):
    for data in (b"", b"\0", b"\0" * 9, struct.pack(">IIBB", 100, 1, 1, 0), b"\xff" * 64):
        other = server.connect()
        other.sock.sendall(data)
        other.sock.close()
    conn.send(1, REQUEST, 0, request(TASK2, "Connect"))
    assert conn.answer()[:2] == (1, 0)


def client_forwards_an_event(peer, path):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    listener.settimeout(60)
    process = subprocess.Popen([peer, "forward", path], stdout=subprocess.PIPE)
    conn = Conn(listener.accept()[0])
    for stream in (1, 3):
        got, kind, flags, body = conn.recv()
        assert (got, kind, flags) == (stream, REQUEST, 0)
        r = fields(body)
        assert r[1] == [b"containerd.services.events.ttrpc.v1.Events"] and r[2] == [b"Forward"]
        assert 0 < r[4][0] <= 5_000_000_000
        assert fields(r[5][0]) == {1: [b"containerd-namespace-ttrpc"], 2: [b"default"]}
        envelope = fields(fields(r[3][0])[1][0])
        assert envelope[2] == [b"default"] and envelope[3] == [b"/tasks/exit"]
        event = fields(envelope[4][0])
        assert event[1] == [b"containerd.events.TaskExit"]
        exit_fields = fields(event[2][0])
        assert exit_fields[3] == [4343] and exit_fields[4] == [137]
        if stream == 1:  # success said with a code
            conn.send(stream, RESPONSE, 0, message(1, b"\x08\x00"))
        else:
            conn.send(stream, RESPONSE, 0, message(1, number(1, 3) + text(2, "bad topic")))
    out = process.communicate(timeout=60)[0].decode().splitlines()
    assert out == ["0 ", "3 bad topic"], out
    listener.close()


def main():
    peer = sys.argv[1]
    tests = [(n, f) for n, f in globals().items() if n.startswith("test_")]
    failed = 0
    print(f"1..{len(tests) + 1}")
    with tempfile.TemporaryDirectory(prefix="lcow-rpc.") as folder:
        for i, (name, test) in enumerate(tests, 1):
            server = Server(peer, os.path.join(folder, f"s{i}"))
            try:
                conn = server.connect()
                test(server, conn)
                conn.sock.close()
                server.stop()
                print(f"ok {i} - {name[5:]}", flush=True)
            except Exception as e:
                server.process.kill()
                failed += 1
                print(f"# {e!r}\nnot ok {i} - {name[5:]}", flush=True)
        try:
            client_forwards_an_event(peer, os.path.join(folder, "events"))
            print(f"ok {len(tests) + 1} - client_forwards_an_event")
        except Exception as e:
            failed += 1
            print(f"# {e!r}\nnot ok {len(tests) + 1} - client_forwards_an_event")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
