"""The official Python client, durable-streams, against a running server.

`python python_client.py http://HOST:PORT`. Runs named checks side by side and prints one JSON
report, which tests/clients.rs judges. The client knows neither closing nor producers nor forks, so
these go through the headers it lets a caller add; it does not reconnect SSE, so a loop does, by
offset. The server ends SSE answers after about a second.
"""

import asyncio
import json
import subprocess
import sys
import threading
import time
import traceback
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
from durable_streams import (
    DurableStream,
    DurableStreamError,
    SeqConflictError,
    StreamExistsError,
    StreamNotFoundError,
    astream,
    stream,
)

ORIGIN = sys.argv[1]
# How long anything that must happen may take. Nothing asserts that something was quick.
PATIENCE = 60.0
RECONNECTS_MIN = 2
# A live read needs an offset (PROTOCOL.md 5.7 and 5.8), and the client sends none by itself.
START = "-1"
CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def base():
    return f"/v1/stream/clients/{uuid.uuid4()}"


def bucket():
    return f"/clients/{uuid.uuid4()}"


def create(path, content_type, **more):
    return DurableStream.create(ORIGIN + path, content_type=content_type, **more)


def catch_up(url, offset=None):
    return stream(url, offset=offset, live=False)


def close(url, content_type, data):
    """Appends `data` and closes, in one request."""
    with DurableStream(
        url, content_type=content_type, headers={"Stream-Closed": "true"}
    ) as handle:
        return handle.append(data)


@contextmanager
def refused(kind, status=None):
    try:
        yield
    except kind as error:
        found = getattr(error, "status", None)
        assert status is None or found == status, f"expected {status}, got {found}: {error!r}"
    else:
        raise AssertionError(f"no {kind.__name__}")


@contextmanager
def appending(url, content_type, item):
    """Appends item(0), item(1), … from a thread until the block ends; gives their count."""
    stop = threading.Event()
    state = {"count": 0, "error": None}

    def run():
        try:
            with DurableStream(url, content_type=content_type) as handle:
                while not stop.wait(0.06):
                    handle.append(item(state["count"]))
                    state["count"] += 1
        except Exception as error:
            state["error"] = error

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def finish():
        stop.set()
        thread.join(PATIENCE)
        assert not thread.is_alive() and state["error"] is None, state
        return state["count"]

    try:
        yield finish
    finally:
        stop.set()


@check
def create_and_head():
    path = base()
    with refused(StreamNotFoundError):
        DurableStream.connect(ORIGIN + path)
    handle = create(path, "application/json", ttl_seconds=3600)
    head = handle.head()
    assert head.exists and head.content_type == "application/json" and head.offset, head
    create(path, "application/json", ttl_seconds=3600)
    with refused(StreamExistsError):
        create(path, "text/plain", ttl_seconds=3600)
    assert DurableStream.connect(ORIGIN + path).content_type == "application/json"


def catch_up_text(path):
    handle = create(path, "text/plain", body="zero;")
    offset = handle.head().offset
    handle.append("eins;")
    tail = handle.append("zwölf;😀").next_offset
    assert tail == handle.head().offset
    with catch_up(handle.url) as response:
        assert response.read_text() == "zero;eins;zwölf;😀"
        assert response.up_to_date and response.offset == tail
    assert catch_up(handle.url, offset).read_text() == "eins;zwölf;😀"
    assert "".join(catch_up(handle.url, offset).iter_text()) == "eins;zwölf;😀"
    assert catch_up(handle.url, tail).read_text() == ""


@check
def catch_up_text_base():
    catch_up_text(base())


@check
def catch_up_text_bucket():
    catch_up_text(bucket())


@check
def catch_up_binary():
    handle = create(base(), "application/octet-stream")
    pieces = [bytes((at * 7 + n) & 255 for at in range(40_000)) for n in range(4)]
    for piece in pieces:
        handle.append(piece)
    assert catch_up(handle.url).read_bytes() == b"".join(pieces)
    assert b"".join(catch_up(handle.url)) == b"".join(pieces)


@check
def json_mode():
    handle = create(base(), "application/json")
    values = [{"a": [1, {"b": None}]}, [1, [2]], 'x\n"é😀\u2028', 1.5e-7, True, None, {}]
    # From several threads, so that the client puts several values into one request.
    with ThreadPoolExecutor(len(values)) as pool:
        list(pool.map(handle.append, values))
    read = catch_up(handle.url).read_json()
    key = json.dumps
    assert sorted(read, key=key) == sorted(values, key=key), read
    offset = handle.head().offset
    handle.append({"late": 1})
    assert list(catch_up(handle.url, offset).iter_json()) == [{"late": 1}]


@check
def stream_seq():
    handle = create(base(), "text/plain")
    handle.append("a", seq="0001")
    handle.append("b", seq="0002")
    with refused(SeqConflictError):
        handle.append("c", seq="0002")
    assert catch_up(handle.url).read_text() == "ab"


@check
def long_poll():
    handle = create(base(), "application/json", body="[-1]")
    statuses = []
    hooks = {"response": [lambda response: statuses.append(response.status_code)]}
    items = []
    with httpx.Client(timeout=30.0, event_hooks=hooks) as client:
        with stream(handle.url, offset=START, live="long-poll", client=client) as response:
            reading = response.iter_json()
            items.append(next(reading))

            # Nothing comes before the server's time-out, then data as it comes.
            def append_late():
                deadline = time.monotonic() + PATIENCE
                while 204 not in statuses and time.monotonic() < deadline:
                    time.sleep(0.02)
                for n in range(20):
                    handle.append(n)

            thread = threading.Thread(target=append_late, daemon=True)
            thread.start()
            while len(items) < 21:
                items.append(next(reading))
            thread.join()
            assert response.offset == handle.head().offset
    assert items == list(range(-1, 20)), items
    assert 204 in statuses, statuses
    return {"requests": len(statuses), "timeouts": statuses.count(204)}


def sse_text(path):
    def item(n):
        return f'{n} é😀\u2028\u0085\n\ndata: {{"forged":true}}\nevent: control\n\n'

    url = create(path, "text/plain").url
    seen, connections, offset, cursor = [], 0, START, None
    with appending(url, "text/plain", item) as finish:
        while connections <= RECONNECTS_MIN or not seen:
            connections += 1
            with stream(url, offset=offset, cursor=cursor, live="sse") as response:
                seen.extend(response.iter_text())
                offset, cursor = response.offset, response.cursor
        appended = finish()
    # What came after the last answer's end, and the end of the stream.
    close(url, "text/plain", "end")
    with stream(url, offset=offset, cursor=cursor, live="sse") as response:
        seen.extend(response.iter_text())
        assert response.offset == DurableStream.head_static(url).offset
    expected = "".join(item(n) for n in range(appended)) + "end"
    assert "".join(seen) == expected
    return {"appended": appended, "connections": connections}


@check
def sse_text_base():
    return sse_text(base())


@check
def sse_text_bucket():
    return sse_text(bucket())


@check
def sse_json():
    url = create(base(), "application/json").url

    async def follow(finish):
        seen, connections, offset = [], 0, START
        while connections <= RECONNECTS_MIN or not seen:
            connections += 1
            async with astream(url, offset=offset, live="sse") as response:
                async for event in response.iter_events("json"):
                    seen.extend(event.data)
                    offset = event.next_offset
                # A control event without data moves it on too.
                offset = response.offset
        appended = finish()
        async with astream(url, offset=offset, live=False) as response:
            seen.extend(await response.read_json())
        return seen, connections, appended

    with appending(url, "application/json", lambda n: {"n": n, "text": "é\u2028\n"}) as finish:
        seen, connections, appended = asyncio.run(follow(finish))
    assert seen == [{"n": n, "text": "é\u2028\n"} for n in range(appended)], seen
    return {"appended": appended, "connections": connections}


@check
def producer_exactly_once():
    """Producer headers from callables, and a retry of whatever the network lost."""
    path = base()
    create(path, "application/json")
    proxy = subprocess.Popen(
        ["node", str(Path(__file__).parent / "fault_proxy.mjs"), ORIGIN],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        proxy_url = json.loads(proxy.stdout.readline())["url"]
        seq = 0
        headers = {
            "Producer-Id": "clients-test",
            "Producer-Epoch": "0",
            "Producer-Seq": lambda: str(seq),
        }
        offsets = []
        with DurableStream(
            proxy_url + path, content_type="application/json", headers=headers
        ) as handle:
            for seq in range(40):
                for attempt in range(100):
                    try:
                        # A repeat is answered 204 and still names the tail, or this raises.
                        offsets.append(handle.append({"n": seq}).next_offset)
                        break
                    except httpx.TransportError:
                        assert attempt < 99
        faults = httpx.get(f"{proxy_url}/__faults").json()
    finally:
        proxy.stdin.close()
        proxy.wait(PATIENCE)
    assert catch_up(ORIGIN + path).read_json() == [{"n": n} for n in range(40)]
    assert sorted(set(offsets)) == offsets, offsets
    for kind in ("answer", "cut", "request"):
        assert faults[kind] >= 2, faults
    return {"answers_lost": faults["answer"] + faults["cut"], "requests_lost": faults["request"]}


@check
def close_by_header():
    url = create(base(), "text/plain", body="a").url
    tail = close(url, "text/plain", "b").next_offset
    assert DurableStream.head_static(url).offset == tail
    # The client takes any 409 for a conflict of sequence numbers.
    with DurableStream(url, content_type="text/plain") as handle:
        with refused(SeqConflictError):
            handle.append("c")
    with stream(url, offset=START, live="sse") as response:
        assert "".join(response.iter_text()) == "ab"
        assert response.offset == tail and response.up_to_date
    with catch_up(url) as response:
        assert response.headers["stream-closed"] == "true"


@check
def fork_by_header():
    path = base()
    source = create(path, "application/json", body="[0,1]")
    offset = source.head().offset
    source.append(2)
    headers = {"Stream-Forked-From": path, "Stream-Fork-Offset": offset}
    url = ORIGIN + base()
    DurableStream.create(url, headers=headers)
    fork = DurableStream.connect(url)
    fork.append(10)
    assert catch_up(url).read_json() == [0, 1, 10]
    source.delete()
    with refused(DurableStreamError, 410):
        catch_up(source.url)
    assert catch_up(url).read_json() == [0, 1, 10]
    fork.delete()


@check
def remove():
    handle = create(base(), "text/plain", body="first")
    handle.delete()
    for gone in (handle.head, handle.delete, lambda: catch_up(handle.url)):
        with refused(StreamNotFoundError):
            gone()
    with refused(DurableStreamError, 404):
        handle.append("x")
    handle.create_stream(content_type="text/plain")
    assert catch_up(handle.url).read_text() == ""


def run(function):
    begun = time.monotonic()
    outcome = {"name": function.__name__, "ok": True, "facts": {}}
    try:
        outcome["facts"] = function() or {}
    except Exception:
        outcome.update(ok=False, why=traceback.format_exc())
    outcome["ms"] = round((time.monotonic() - begun) * 1000)
    return outcome


if __name__ == "__main__":
    with ThreadPoolExecutor(len(CHECKS)) as pool:
        print(json.dumps({"checks": list(pool.map(run, CHECKS))}))
