// The official JavaScript client, @durable-streams/client, against a running server.
//
// `node javascript.mjs http://HOST:PORT`. The server ends SSE answers after about a second, so
// that every SSE reader here has to reconnect, and long-polls too, so that some find nothing.

import assert from "node:assert/strict"

import {
  DurableStream,
  DurableStreamError,
  FetchError,
  IdempotentProducer,
  StaleEpochError,
  StreamClosedError,
  stream,
} from "@durable-streams/client"

import { basePath, bucketPath, eventually, report, sleep } from "./checks.mjs"
import { startFaultProxy } from "./fault_proxy.mjs"

const ORIGIN = process.argv[2]
const RECONNECTS_MIN = 2
/** 1 s is what the server is told here; the client takes shorter answers for a broken proxy. */
const sseResilience = { minConnectionDuration: 0 }
const range = (from, to) => Array.from({ length: to - from }, (_, index) => from + index)
const decode = (bytes) => new TextDecoder().decode(bytes)

const create = (path, contentType, more = {}) =>
  DurableStream.create({ url: ORIGIN + path, contentType, ...more })
const catchUp = (url, offset) => stream({ url, offset, live: false })

/** A fetch that counts live requests, and those among them that found nothing. */
function countingFetch() {
  const counts = { live: 0, empty: 0 }
  const counting = async (url, init) => {
    const live = new URL(url).searchParams.has("live")
    if (live) counts.live += 1
    const response = await fetch(url, init)
    if (live && response.status === 204) counts.empty += 1
    return response
  }
  return { counts, fetch: counting }
}

/** Appends `item(0)`, `item(1)`, … until `enough()`, then closes; gives how many there were. */
async function appendUntil(handle, item, enough) {
  let appended = 0
  await eventually("the reader has seen enough", async () => {
    await handle.append(item(appended))
    appended += 1
    await sleep(60)
    return enough(appended)
  })
  await handle.close()
  return appended
}

/** Retries what the network lost, and nothing else: the producer judges every answer itself. */
async function retryingFetch(url, init) {
  for (let attempt = 0; ; attempt += 1) {
    try {
      return await fetch(url, init)
    } catch (error) {
      if (attempt === 100) throw error
      await sleep(5)
    }
  }
}

/** Produces through the proxy that loses exchanges, closes through it, reads without it. */
async function exactlyOnce(contentType, message, final) {
  const proxy = await startFaultProxy(ORIGIN)
  const path = basePath()
  await create(path, contentType)
  const handle = new DurableStream({ url: proxy.url + path, contentType })
  const errors = []
  const producer = new IdempotentProducer(handle, "clients-test", {
    fetch: retryingFetch,
    lingerMs: 1,
    maxBatchBytes: 48,
    onError: (error) => errors.push(String(error)),
  })
  const messages = range(0, 120).map(message)
  for (const [index, text] of messages.entries()) {
    producer.append(text)
    if (index % 10 === 9) await sleep(2)
  }
  await producer.flush()
  const { finalOffset } = await producer.close(final)
  proxy.stop()
  assert.deepEqual(errors, [])

  const head = await DurableStream.head({ url: ORIGIN + path })
  assert.equal(head.streamClosed, true)
  assert.equal(head.offset, finalOffset)
  for (const kind of ["answer", "cut", "request"]) {
    assert.ok(proxy.counts[kind] >= 2, `${kind}: ${JSON.stringify(proxy.counts)}`)
  }
  return { messages: [...messages, final], read: await catchUp(ORIGIN + path), faults: proxy.counts }
}

/** Follows `path` over SSE while it grows, until the reader has reconnected often enough. */
async function followSse(path, contentType, item, subscribe) {
  const handle = await create(path, contentType)
  const { counts, fetch } = countingFetch()
  const response = await stream({ url: handle.url, live: "sse", fetch, sseResilience })
  const seen = []
  subscribe(response, seen)
  const appended = await appendUntil(handle, item, () => counts.live > RECONNECTS_MIN)
  await response.closed
  assert.equal(response.streamClosed, true)
  assert.equal(response.offset, (await handle.head()).offset)
  return { seen, appended, facts: { appended, connections: counts.live } }
}

async function sseText(path) {
  // Line breaks, a forged event and characters that some take for line breaks.
  const item = (n) => `${n} é😀\u2028\u0085\n\ndata: {"forged":true}\nevent: control\n\n`
  const { seen, appended, facts } = await followSse(path, "text/plain", item, (response, seen) =>
    response.subscribeText((chunk) => void seen.push(chunk.text)),
  )
  assert.equal(seen.join(""), range(0, appended).map(item).join(""))
  return facts
}

async function catchUpText(path) {
  const handle = await create(path, "text/plain", { body: "zero;", batching: false })
  assert.equal(await (await catchUp(handle.url)).text(), "zero;")
  const { offset } = await handle.head()
  await handle.append("eins;")
  await handle.append("zwölf;😀")
  const whole = await catchUp(handle.url)
  assert.equal(await whole.text(), "zero;eins;zwölf;😀")
  assert.equal(whole.upToDate, true)
  assert.equal(whole.offset, (await handle.head()).offset)
  assert.equal(await (await catchUp(handle.url, offset)).text(), "eins;zwölf;😀")
  assert.equal(await (await catchUp(handle.url, whole.offset)).text(), "")
  assert.equal(await (await catchUp(handle.url, "now")).text(), "")
}

await report({
  async create_and_head() {
    const path = basePath()
    assert.deepEqual(await DurableStream.head({ url: ORIGIN + path }), { exists: false })
    const handle = await create(path, "application/json", { ttlSeconds: 3600 })
    const head = await handle.head()
    assert.equal(head.exists, true)
    assert.equal(head.contentType, "application/json")
    assert.equal(head.streamClosed, false)
    assert.ok(head.offset)
    // The same again is fine, another configuration is not.
    await create(path, "application/json", { ttlSeconds: 3600 })
    await assert.rejects(create(path, "text/plain", { ttlSeconds: 3600 }), (error) => {
      assert.ok(error instanceof DurableStreamError || error instanceof FetchError, error)
      assert.equal(error.status, 409)
      return true
    })
    const connected = await DurableStream.connect({ url: ORIGIN + path })
    assert.equal(connected.contentType, "application/json")
  },

  catch_up_text_base: () => catchUpText(basePath()),
  catch_up_text_bucket: () => catchUpText(bucketPath()),

  async catch_up_binary() {
    const handle = await create(basePath(), "application/octet-stream")
    const piece = (n) => Uint8Array.from({ length: 40_000 }, (_, at) => (at * 7 + n) & 255)
    await handle.append(piece(0))
    // A body of unknown length: chunked on the wire.
    await handle.appendStream(
      (async function* () {
        for (const n of range(1, 8)) yield piece(n)
      })(),
    )
    const read = await (await catchUp(handle.url)).body()
    assert.deepEqual(Buffer.from(read), Buffer.concat(range(0, 8).map(piece)))
  },

  async writable_stream() {
    const handle = await create(basePath(), "text/plain")
    const source = new ReadableStream({
      start(controller) {
        for (const n of range(0, 50)) controller.enqueue(`line ${n}\n`)
        controller.close()
      },
    })
    await source.pipeTo(handle.writable())
    const response = await catchUp(handle.url)
    const expected = range(0, 50).map((n) => `line ${n}\n`)
    assert.equal(await response.text(), expected.join(""))
    assert.equal(response.streamClosed, true)
  },

  async json_mode() {
    const handle = await create(basePath(), "application/json")
    const values = [{ a: [1, 2, { b: null }] }, [1, [2]], "x\n\"é😀", 1.5e-7, true, null, [], {}]
    // Side by side, so that the client puts several values into one request.
    await Promise.all(values.map((value) => handle.append(JSON.stringify(value))))
    assert.deepEqual(await (await catchUp(handle.url)).json(), values)
    const { offset } = await handle.head()
    await handle.append(JSON.stringify({ late: 1 }))
    assert.deepEqual(await (await catchUp(handle.url, offset)).json(), [{ late: 1 }])
    await assert.rejects(handle.append("{no json"), (error) => {
      assert.equal(error.status, 400)
      return true
    })
    assert.equal((await (await catchUp(handle.url)).json()).length, values.length + 1)
  },

  async stream_seq() {
    const handle = await create(basePath(), "text/plain")
    await handle.append("a", { seq: "0001" })
    await handle.append("b", { seq: "0002" })
    await assert.rejects(handle.append("c", { seq: "0002" }), (error) => {
      assert.equal(error.status, 409)
      return true
    })
    assert.equal(await (await catchUp(handle.url)).text(), "ab")
  },

  async long_poll() {
    const handle = await create(basePath(), "application/json", { body: "[-1]" })
    const { counts, fetch } = countingFetch()
    const response = await stream({ url: handle.url, live: "long-poll", fetch })
    const seen = []
    response.subscribeJson((batch) => void seen.push(...batch.items))
    // The server's time-out first, then data as it comes.
    await eventually("a long-poll that times out", () => counts.empty > 0)
    const appended = await appendUntil(handle, String, (count) => count >= 20)
    await response.closed
    assert.deepEqual(seen, range(-1, appended))
    assert.equal(response.streamClosed, true)
    return { requests: counts.live, timeouts: counts.empty }
  },

  async sse_json() {
    const item = (n) => JSON.stringify({ n, text: "é\u2028\n" })
    const { seen, appended, facts } = await followSse(
      basePath(),
      "application/json",
      item,
      (response, seen) => response.subscribeJson((batch) => void seen.push(...batch.items)),
    )
    assert.deepEqual(
      seen,
      range(0, appended).map((n) => JSON.parse(item(n))),
    )
    return facts
  },

  sse_text_base: () => sseText(basePath()),
  sse_text_bucket: () => sseText(bucketPath()),

  async sse_binary() {
    const item = (n) => Uint8Array.of(n, 0, 10, 13, 255, n)
    const { seen, appended, facts } = await followSse(
      basePath(),
      "application/octet-stream",
      item,
      (response, seen) => response.subscribeBytes((chunk) => void seen.push(chunk.data)),
    )
    assert.deepEqual(Buffer.concat(seen), Buffer.concat(range(0, appended).map(item)))
    return facts
  },

  async producer_exactly_once_json() {
    const message = (n) => JSON.stringify({ n })
    const { messages, read, faults } = await exactlyOnce("application/json", message, '"end"')
    assert.deepEqual(await read.json(), messages.map(JSON.parse))
    return { answers_lost: faults.answer + faults.cut, requests_lost: faults.request }
  },

  async producer_exactly_once_bytes() {
    const message = (n) => `message ${n};`
    const { messages, read, faults } = await exactlyOnce("application/octet-stream", message, "end")
    assert.equal(decode(await read.body()), messages.join(""))
    return { answers_lost: faults.answer + faults.cut, requests_lost: faults.request }
  },

  async producer_fencing() {
    const handle = await create(basePath(), "text/plain")
    const errors = []
    const old = new IdempotentProducer(handle, "p", { epoch: 3, onError: (e) => errors.push(e) })
    old.append("old;")
    await old.flush()
    const claimer = new IdempotentProducer(handle, "p", { autoClaim: true })
    claimer.append("new;")
    await claimer.flush()
    assert.equal(claimer.epoch, 4)
    old.append("lost;")
    await old.flush().catch(() => {})
    assert.ok(errors[0] instanceof StaleEpochError, errors[0])
    assert.equal(errors[0].currentEpoch, 4)
    await claimer.restart()
    claimer.append("newer;")
    await claimer.detach()
    assert.equal(await (await catchUp(handle.url)).text(), "old;new;newer;")
  },

  async close() {
    const handle = await create(basePath(), "text/plain")
    await handle.append("a")
    const { finalOffset } = await handle.close({ body: "b" })
    const head = await handle.head()
    assert.equal(head.streamClosed, true)
    assert.equal(head.offset, finalOffset)
    assert.deepEqual(await handle.close(), { finalOffset })
    await assert.rejects(handle.append("c"), (error) => {
      assert.ok(error instanceof StreamClosedError || error.status === 409, error)
      return true
    })
    const response = await stream({ url: handle.url, live: true })
    assert.equal(await response.text(), "ab")
    await response.closed
    assert.equal(response.streamClosed, true)

    const born = await create(basePath(), "text/plain", { body: "all", closed: true })
    assert.equal((await born.head()).streamClosed, true)
    assert.equal(await (await catchUp(born.url)).text(), "all")
  },

  async remove() {
    const handle = await create(basePath(), "text/plain", { body: "first" })
    await handle.delete()
    assert.deepEqual(await handle.head(), { exists: false })
    for (const gone of [() => handle.delete(), () => handle.append("x"), () => catchUp(handle.url)]) {
      await assert.rejects(gone(), (error) => {
        assert.equal(error.status, 404)
        return true
      })
    }
    await handle.create({ contentType: "text/plain" })
    assert.equal(await (await catchUp(handle.url)).text(), "")
  },

  async fork() {
    const path = basePath()
    const source = await create(path, "application/json", { body: "[0,1]" })
    const { offset } = await source.head()
    await source.append("2")
    const headers = { "Stream-Forked-From": path, "Stream-Fork-Offset": offset }
    const url = ORIGIN + basePath()
    await DurableStream.create({ url, headers })
    // As the client's documentation asks: a fresh handle for what follows.
    const fork = await DurableStream.connect({ url })
    assert.equal(fork.contentType, "application/json")
    assert.deepEqual(await (await catchUp(url)).json(), [0, 1])

    const { counts, fetch } = countingFetch()
    const live = await stream({ url, live: "sse", fetch, sseResilience })
    const seen = []
    live.subscribeJson((batch) => void seen.push(...batch.items))
    await source.append("3")
    await source.delete()
    await assert.rejects(catchUp(source.url), (error) => {
      assert.equal(error.status, 410)
      return true
    })
    const appended = await appendUntil(
      fork,
      (n) => String(100 + n),
      () => counts.live > RECONNECTS_MIN,
    )
    await live.closed
    const expected = [0, 1, ...range(100, 100 + appended)]
    assert.deepEqual(seen, expected)
    assert.deepEqual(await (await catchUp(url)).json(), expected)
    await fork.delete()
    await eventually("the source's name is free again", async () => {
      const answer = await fetch(source.url)
      return answer.status === 404
    })
    return { appended, connections: counts.live }
  },
})
