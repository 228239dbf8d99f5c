// A browser against a running server, from a page of another origin.
//
// `node browser.mjs http://HOST:PORT http://ADMIN_HOST:PORT /path/to/chromium`. The page's origin
// is a small server here. The stream server ends SSE answers after about a second, so that every
// EventSource sees its answer end. A browser opens six connections to one host: checks that keep some
// busy have contexts, thus connections, of their own.

import assert from "node:assert/strict"
import { readFile } from "node:fs/promises"
import http from "node:http"

import { chromium } from "playwright-core"

import { PATIENCE_MS, basePath, bucketPath, eventually, report } from "./checks.mjs"

const [ORIGIN, ADMIN, CHROMIUM] = process.argv.slice(2)
const RECONNECTS_MIN = 2
const SCRIPT = "window.ran = true"

// --- The page's origin -----------------------------------------------------------------------

const hits = new Set()
const ours = {
  "/": ["text/html", "<!doctype html><title>page</title><script src=/page.js></script>"],
  "/page.js": ["text/javascript", await readFile(new URL("page.js", import.meta.url))],
  "/client.js": [
    "text/javascript",
    await readFile(new URL(import.meta.resolve("@durable-streams/client"))),
  ],
  "/script.txt": ["text/plain", SCRIPT],
}
const pageServer = http.createServer((request, response) => {
  hits.add(request.url)
  const [type, body] = ours[request.url] ?? ["text/plain", ""]
  response.writeHead(200, { "Content-Type": type }).end(body)
})
await new Promise((resolve) => pageServer.listen(0, "127.0.0.1", resolve))
const PAGE_ORIGIN = `http://127.0.0.1:${pageServer.address().port}`

/** HTML that tells the page's origin when it is rendered and when its script runs. */
const spyingHtml = (name) => `<!doctype html><title>stored</title>
<img src="${PAGE_ORIGIN}/rendered-${name}">
<script>document.title = "ran"; new Image().src = "${PAGE_ORIGIN}/ran-${name}"</script>
<svg xmlns="http://www.w3.org/2000/svg" onload="new Image().src='${PAGE_ORIGIN}/ran-${name}'"/>`
ours["/spying.html"] = ["text/html", spyingHtml("ours")]

// --- The browser -----------------------------------------------------------------------------

const browser = await chromium.launch({
  executablePath: CHROMIUM,
  args: [
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
  ],
})

const contexts = new Map()
const pages = new Map()

/** The value of `key`, made at the first use. */
function once(map, key, make) {
  if (!map.has(key)) map.set(key, make())
  return map.get(key)
}

/** A new page of our origin. */
async function openPage(context) {
  const page = await (await once(contexts, context, () => browser.newContext())).newPage()
  page.setDefaultTimeout(PATIENCE_MS)
  await page.goto(PAGE_ORIGIN)
  return page
}

/** The one page of `context` that checks share. */
const sharedPage = (context) => once(pages, context, () => openPage(context))

/** Calls `page.name(...args)` there. */
const run = (page, name, ...args) =>
  page.evaluate(([name, args]) => window.page[name](...args), [name, args])

/** The preflights that `page` makes for `url`, and how they are answered. */
async function watchPreflights(page, url) {
  const session = await page.context().newCDPSession(page)
  const asked = new Map()
  const answered = []
  session.on("Network.requestWillBeSent", ({ requestId, request }) => {
    if (request.method === "OPTIONS" && request.url.startsWith(url)) asked.set(requestId, request)
  })
  session.on("Network.responseReceived", ({ requestId, response }) => {
    const request = asked.get(requestId)
    if (request === undefined) return
    const wanted = Object.fromEntries(
      Object.entries(request.headers).map(([name, value]) => [name.toLowerCase(), value]),
    )
    answered.push({
      status: response.status,
      method: wanted["access-control-request-method"],
      headers: (wanted["access-control-request-headers"] ?? "").split(/, */),
    })
  })
  await session.send("Network.enable")
  return answered
}

/** Stores a body under `path` from here, not from a browser. */
async function put(path, contentType, body) {
  const answer = await fetch(ORIGIN + path, {
    method: "PUT",
    headers: { "Content-Type": contentType },
    body,
  })
  assert.equal(answer.status, 201)
  return ORIGIN + path
}

async function fetchAcrossOrigins(path) {
  const url = ORIGIN + path
  const page = await sharedPage("fetch")
  const preflights = await watchPreflights(page, url)
  const call = (method, headers, body, query = "") =>
    run(page, "call", url + query, method, headers, body)
  const json = { "Content-Type": "application/json" }
  const producer = (epoch, seq) => ({
    "Producer-Id": "page",
    "Producer-Epoch": String(epoch),
    "Producer-Seq": String(seq),
  })

  const missing = await call("GET")
  assert.equal(missing.status, 404)
  assert.ok(JSON.parse(missing.body).error.code)

  const created = await call("PUT", { ...json, "Stream-TTL": "600" })
  assert.equal(created.status, 201)
  for (const name of ["location", "stream-next-offset", "stream-incarnation"]) {
    assert.ok(created.headers[name], `${name}: ${JSON.stringify(created)}`)
  }

  const appended = await call("POST", { ...json, ...producer(1, 0), "Stream-Seq": "a" }, '[{"n":1}]')
  assert.equal(appended.status, 200)
  assert.equal(appended.headers["producer-epoch"], "1")
  assert.equal(appended.headers["producer-seq"], "0")
  const tail = appended.headers["stream-next-offset"]
  assert.ok(tail > created.headers["stream-next-offset"])
  const again = await call("POST", { ...json, ...producer(1, 0) }, '[{"n":1}]')
  assert.equal(again.status, 204)
  const gap = await call("POST", { ...json, ...producer(1, 5) }, "[2]")
  assert.equal(gap.status, 409)
  assert.equal(gap.headers["producer-expected-seq"], "1")
  assert.equal(gap.headers["producer-received-seq"], "5")
  const stale = await call("POST", { ...json, ...producer(0, 0) }, "[2]")
  assert.equal(stale.status, 403)
  assert.equal(stale.headers["producer-epoch"], "1")

  const head = await call("HEAD")
  assert.equal(head.status, 200)
  assert.equal(head.headers["stream-next-offset"], tail)
  assert.equal(head.headers["stream-ttl"], "600")
  assert.equal(head.headers["content-type"], "application/json")

  const read = await call("GET", {}, undefined, "?offset=-1")
  assert.equal(read.status, 200)
  assert.deepEqual([JSON.parse(read.body)].flat(), [{ n: 1 }])
  assert.equal(read.headers["stream-next-offset"], tail)
  assert.equal(read.headers["stream-up-to-date"], "true")
  // The browser's own cache stays out of it, so the page sees the 304.
  const known = { "If-None-Match": read.headers.etag ?? '"none"' }
  const same = await call("GET", known, undefined, "?offset=-1")
  assert.equal(same.status, read.headers.etag === undefined ? 200 : 304)
  const poll = await call("GET", {}, undefined, `?offset=${tail}&live=long-poll`)
  assert.equal(poll.status, 204)
  assert.ok(poll.headers["stream-cursor"])

  const closed = await call("POST", { ...json, ...producer(1, 1), "Stream-Closed": "true" }, "[2]")
  assert.equal(closed.headers["stream-closed"], "true")
  const late = await call("POST", json, "[3]")
  assert.equal(late.status, 409)
  assert.equal(late.headers["stream-closed"], "true")
  assert.equal((await call("DELETE")).status, 204)
  assert.equal((await call("HEAD")).status, 404)

  const wanted = {
    PUT: ["content-type", "stream-ttl"],
    POST: ["content-type", "producer-epoch", "producer-id", "producer-seq", "stream-closed"],
    GET: ["if-none-match"],
    DELETE: [],
  }
  for (const [method, headers] of Object.entries(wanted)) {
    await eventually(`a preflight of ${method}`, () =>
      preflights.some((asked) => asked.method === method && headers.every((name) => asked.headers.includes(name))),
    )
  }
  assert.ok(preflights.every(({ status }) => status === 204 || status === 200))
  return { preflights: preflights.length }
}

async function followText(path) {
  const page = await sharedPage("text")
  const seen = await run(page, "followText", ORIGIN + path, RECONNECTS_MIN)
  assert.equal(seen.data.join(""), seen.sent.join(""))
  return judgeFollowed(seen)
}

async function followJson(path, parse) {
  const page = await sharedPage("json")
  const seen = await run(page, "followJson", ORIGIN + path, RECONNECTS_MIN)
  assert.deepEqual(seen.data.flatMap(parse), seen.sent.flatMap((body) => JSON.parse(body)))
  return judgeFollowed(seen)
}

function judgeFollowed({ controls, tail, sent, connections }) {
  assert.deepEqual(controls, [...controls].sort(), "offsets go one way")
  assert.equal(controls.at(-1), tail)
  return { appended: sent.length, connections }
}

async function storedHtml(path, name) {
  const url = await put(path, "text/html", spyingHtml(name))
  const page = await openPage("fetch")
  const answer = await page.goto(url, { waitUntil: "load" })
  assert.equal(answer.status(), 200)
  assert.equal(answer.headers()["content-type"], "text/html")
  // It is shown, as a document of its own, and its script does not run.
  assert.ok(hits.has(`/rendered-${name}`))
  assert.equal(await page.title(), "stored")
  assert.ok(!hits.has(`/ran-${name}`))
}

try {
  await report({
    fetch_base: () => fetchAcrossOrigins(basePath()),
    fetch_bucket: () => fetchAcrossOrigins(bucketPath()),

    /** Shows that this browser enforces the rules that the others pass. */
    async fetch_needs_permission() {
      const page = await sharedPage("fetch")
      const url = await put(basePath(), "text/plain", "abc")
      assert.equal(await run(page, "readable", url), true)
      assert.equal(await run(page, "readable", `${ADMIN}/`), false)
    },

    /**
     * Base reads may be kept by caches. What a request without `Origin` put there must do for a
     * page too: it needs the exposed headers, or `Vary: Origin` so that the cache asks again.
     */
    async fetch_after_a_cached_load() {
      const page = await sharedPage("fetch")
      const url = await put(basePath(), "text/javascript", SCRIPT)
      const headers = await run(page, "headersFromCache", url)
      assert.ok(headers["stream-next-offset"], JSON.stringify(headers))
    },

    event_source_text_base: () => followText(basePath()),
    event_source_text_bucket: () => followText(bucketPath()),
    event_source_json_base: () => followJson(basePath(), (data) => JSON.parse(data)),
    // Stored lines, their last line feed kept.
    event_source_json_bucket: () =>
      followJson(bucketPath(), (data) => {
        const lines = data.split("\n")
        assert.equal(lines.pop(), "")
        return lines.map((line) => JSON.parse(line))
      }),

    async event_source_by_itself() {
      const page = await sharedPage("more")
      const url = await put(basePath(), "text/plain", "line\n")
      const answers = await run(page, "reconnectByItself", `${url}?offset=-1&live=sse`)
      assert.deepEqual(answers, [["line\n"], ["line\n"]])
    },

    async official_client() {
      const page = await sharedPage("more")
      const seen = await run(page, "officialClient", ORIGIN + basePath(), RECONNECTS_MIN)
      assert.deepEqual(seen.seen, seen.expected)
      assert.equal(seen.head.streamClosed, true)
      assert.equal(seen.head.offset, seen.offset)
      assert.deepEqual(seen.gone, { exists: false })
      return { appended: seen.seen.length, connections: seen.connections }
    },

    stored_html_base: () => storedHtml(basePath(), "base"),
    stored_html_bucket: () => storedHtml(bucketPath(), "bucket"),

    /** The same bytes from a server without our headers: this browser would run them. */
    async stored_html_control() {
      const page = await openPage("fetch")
      await page.goto(`${PAGE_ORIGIN}/spying.html`, { waitUntil: "load" })
      assert.equal(await page.title(), "ran")
      await eventually("its script runs", () => hits.has("/ran-ours"))
    },

    /** No sniffing: stored text is no script, whoever embeds it. */
    async stored_text_is_no_script() {
      const page = await sharedPage("fetch")
      assert.equal(await run(page, "runsAsScript", `${PAGE_ORIGIN}/script.txt`), true)
      for (const path of [basePath(), bucketPath()]) {
        const url = await put(path, "text/plain", SCRIPT)
        assert.equal(await run(page, "runsAsScript", url), false)
      }
    },
  })
} finally {
  await browser.close()
  pageServer.closeAllConnections()
  pageServer.close()
}
