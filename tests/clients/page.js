// What runs inside the page, which another origin than the server's has served. browser.mjs calls
// these functions and judges what they give.

const range = (from, to) => Array.from({ length: to - from }, (_, index) => from + index)
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

/**
 * One fetch, with every answer header that this origin may read. Without a cache, not even one of
 * preflights: each request that needs one asks for it.
 */
async function call(url, method, headers = {}, body = undefined) {
  const response = await fetch(url, { method, headers, body, cache: "no-store" })
  return {
    status: response.status,
    headers: Object.fromEntries(response.headers),
    body: await response.text(),
  }
}

/** The answer headers that this origin may read after the same URL was loaded as an image is. */
async function headersFromCache(url) {
  await (await fetch(url, { mode: "no-cors" })).text()
  return Object.fromEntries((await fetch(url)).headers)
}

/** Whether this origin may read what `url` answers. */
async function readable(url) {
  try {
    await fetch(url)
    return true
  } catch {
    return false
  }
}

/**
 * Follows a stream as the protocol asks, with one EventSource after another: when an answer ends,
 * the next begins at the offset of the last control event. Data without its control event is not
 * taken, as the next answer brings it again. Ends with the stream.
 */
function follow(url, progress) {
  return new Promise((resolve, reject) => {
    const seen = { data: [], controls: [] }
    let next = { streamNextOffset: "-1" }
    const connect = () => {
      progress.connections += 1
      const from = new URL(url)
      from.searchParams.set("live", "sse")
      from.searchParams.set("offset", next.streamNextOffset)
      if (next.streamCursor) from.searchParams.set("cursor", next.streamCursor)
      const source = new EventSource(from)
      let held = []
      source.addEventListener("data", (event) => held.push(event.data))
      source.addEventListener("control", (event) => {
        next = JSON.parse(event.data)
        seen.controls.push(next.streamNextOffset)
        seen.data.push(...held.splice(0))
        if (!next.streamClosed) return
        source.close()
        resolve(seen)
      })
      source.addEventListener("message", (event) => reject(new Error(`no event type: ${event.data}`)))
      source.onerror = () => {
        // A refusal is final; the end of an answer is not.
        if (source.readyState === EventSource.CLOSED) reject(new Error(`refused: ${from}`))
        source.close()
        connect()
      }
    }
    connect()
  })
}

/**
 * Creates a stream, follows it, and appends `bodies(n)` with producer headers until the follower
 * has reconnected `reconnectsMin` times; then closes it. Every request crosses origins.
 */
async function followWhileAppending(url, contentType, body, reconnectsMin) {
  const created = await call(url, "PUT", { "Content-Type": contentType, "Stream-TTL": "600" })
  if (created.status !== 201) throw new Error(`PUT: ${JSON.stringify(created)}`)
  const progress = { connections: 0 }
  const following = follow(url, progress)
  const append = async (seq, headers) => {
    const answer = await call(url, "POST", {
      "Content-Type": contentType,
      "Producer-Id": "page",
      "Producer-Epoch": "0",
      "Producer-Seq": String(seq),
      ...headers,
    }, body(seq))
    if (answer.status !== 200) throw new Error(`POST ${seq}: ${JSON.stringify(answer)}`)
    return answer.headers["stream-next-offset"]
  }
  const work = (async () => {
    let seq = 0
    for (; seq < 3 || progress.connections <= reconnectsMin; seq += 1) {
      await append(seq, {})
      await sleep(60)
    }
    return { tail: await append(seq, { "Stream-Closed": "true" }), appended: seq + 1 }
  })()
  const [seen, { tail, appended }] = await Promise.all([following, work])
  return { ...seen, tail, sent: range(0, appended).map(body), connections: progress.connections }
}

const item = (n) => `${n} é😀\u2028\u0085\n\ndata: {"forged":true}\nevent: control\n\n`

window.page = {
  call,
  readable,
  headersFromCache,

  followText: (url, reconnectsMin) => followWhileAppending(url, "text/plain", item, reconnectsMin),

  followJson: (url, reconnectsMin) =>
    followWhileAppending(url, "application/json", (n) => JSON.stringify([{ n, t: item(n) }]), reconnectsMin),

  /** Leaves reconnecting to the browser, which asks for the same offset again. */
  reconnectByItself(url) {
    return new Promise((resolve, reject) => {
      const source = new EventSource(url)
      const answers = []
      source.onopen = () => answers.push([])
      source.addEventListener("data", (event) => answers.at(-1).push(event.data))
      source.addEventListener("control", () => {
        if (answers.length < 2 || answers[1].length === 0) return
        source.close()
        resolve(answers)
      })
      source.onerror = () => {
        if (source.readyState === EventSource.CLOSED) reject(new Error("refused"))
      }
    })
  },

  /** The official client, in a browser: create, append, SSE with reconnects, close, HEAD, delete. */
  async officialClient(url, reconnectsMin) {
    const { DurableStream, stream } = await import("/client.js")
    const handle = await DurableStream.create({ url, contentType: "application/json" })
    let connections = 0
    const response = await stream({
      url,
      live: "sse",
      sseResilience: { minConnectionDuration: 0 },
      fetch: (target, init) => {
        if (new URL(target).searchParams.get("live") === "sse") connections += 1
        return fetch(target, init)
      },
    })
    const seen = []
    response.subscribeJson((batch) => void seen.push(...batch.items))
    let appended = 0
    for (; appended < 3 || connections <= reconnectsMin; appended += 1) {
      await handle.append(String(appended))
      await sleep(60)
    }
    await handle.close()
    await response.closed
    const head = await handle.head()
    await handle.delete()
    const gone = await handle.head()
    return { seen, expected: range(0, appended), connections, head, offset: response.offset, gone }
  },

  /** Whether the browser runs `url` as a script of this page. */
  runsAsScript(url) {
    return new Promise((resolve) => {
      window.ran = false
      const script = document.createElement("script")
      script.src = url
      script.onload = script.onerror = () => resolve(window.ran)
      document.head.append(script)
    })
  },
}
