// The page of the admin plane in a browser, while the server has something to do.
//
// `node admin_page.mjs http://HOST:PORT http://ADMIN_HOST:PORT /path/to/chromium FOLDER`. Screens of
// every look are kept in FOLDER.

import assert from "node:assert/strict"
import path from "node:path"

import { chromium } from "playwright-core"

import { PATIENCE_MS, bucketPath, eventually, report, sleep } from "./checks.mjs"

const [ORIGIN, ADMIN, CHROMIUM, FOLDER] = process.argv.slice(2)
const CANVASES = ["operations", "data", "latency", "stages", "disk"]
const POLLS_MIN = 4

/** Appends, reads, a long-poll and an event stream, until told to stop. */
async function work(signal) {
  const stream = ORIGIN + bucketPath()
  const headers = { "Content-Type": "text/plain" }
  await fetch(stream.slice(0, stream.lastIndexOf("/")), { method: "PUT" })
  assert.equal((await fetch(stream, { method: "PUT", headers })).status, 201)
  const events = await fetch(`${stream}?offset=-1&live=sse`, { signal })
  const drain = events.body.pipeTo(new WritableStream()).catch(() => {})
  for (let tail = "-1"; !signal.aborted; ) {
    const poll = fetch(`${stream}?offset=now&live=long-poll&timeout_ms=1000`)
    await sleep(10)
    const sent = await fetch(stream, { method: "POST", headers, body: "x".repeat(1000) })
    assert.ok(sent.ok)
    const read = await fetch(`${stream}?offset=${tail}`)
    tail = read.headers.get("stream-next-offset")
    await Promise.all([read.text(), poll.then((answer) => answer.text())])
  }
  await drain
}

/** How many pixels of a canvas are not see-through, and how many colours they have. */
const ink = (page, id) =>
  page.evaluate((id) => {
    const canvas = document.getElementById(id)
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height)
    const colours = new Set()
    let pixels = 0
    for (let i = 0; i < data.length; i += 4) {
      if (data[i + 3] < 255) continue
      pixels++
      colours.add((data[i] << 16) | (data[i + 1] << 8) | data[i + 2])
    }
    return { pixels, colours: colours.size }
  }, id)

async function look(browser, width, colorScheme) {
  const page = await browser.newPage({ viewport: { width, height: 900 }, colorScheme })
  page.setDefaultTimeout(PATIENCE_MS)
  const wrong = []
  page.on("console", (line) => line.type() === "error" && wrong.push(line.text()))
  page.on("pageerror", (error) => wrong.push(String(error)))
  page.on("requestfailed", (request) => wrong.push(request.url()))
  const foreign = []
  page.on("request", (request) => request.url().startsWith(ADMIN) || foreign.push(request.url()))
  await page.goto(`${ADMIN}/`)
  await eventually("some polls", () =>
    page.evaluate((least) => Number(document.documentElement.dataset.polls) >= least, POLLS_MIN),
  )
  for (const id of CANVASES) {
    const { pixels, colours } = await ink(page, id)
    // Axes, labels and lines; one colour would be axes alone.
    assert.ok(pixels > 200 && colours >= 3, `${id}: ${pixels} pixels in ${colours} colours`)
  }
  const text = await page.evaluate(() => document.body.innerText)
  assert.match(text, /serving/)
  assert.match(text, /appends \d[\d.]*k?\/s/)
  assert.match(text, /SSE events [1-9\d][\d.]*\/s/)
  assert.match(text, /p99 [\d.]+ (µs|ms)/)
  assert.match(text, /shard 1/)
  assert.match(text, /of [\d.]+ [GM]iB/)
  assert.doesNotMatch(text, /NaN|undefined|Infinity/)
  // Nothing is cut off on a phone.
  const [wide, room] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth])
  assert.ok(wide <= room, `${wide} pixels in ${room}`)
  await page.locator("details").evaluate((details) => (details.open = true))
  await eventually("the table", () => page.locator("table td").count())
  assert.match(await page.locator("table").innerText(), /journal_batch/)
  await page.locator("details").evaluate((details) => (details.open = false))
  const file = path.join(FOLDER, `admin-${width}-${colorScheme}.png`)
  await page.screenshot({ path: file, fullPage: true })
  assert.deepEqual([wrong, foreign], [[], []])
  await page.close()
  return { width }
}

const browser = await chromium.launch({ executablePath: CHROMIUM, args: ["--disable-gpu"] })
const ended = new AbortController()
const working = [work(ended.signal), work(ended.signal)]
try {
  await report({
    wide_light: () => look(browser, 1280, "light"),
    wide_dark: () => look(browser, 1280, "dark"),
    phone_light: () => look(browser, 390, "light"),
    phone_dark: () => look(browser, 390, "dark"),

    /** A page of another origin sees nothing, and cannot put ours into a frame. */
    async stays_its_own() {
      const answer = await fetch(`${ADMIN}/`)
      assert.match(answer.headers.get("content-security-policy"), /frame-ancestors 'none'/)
      assert.equal((await fetch(`${ADMIN}/`, { headers: { Origin: ORIGIN } })).status, 400)
    },
  })
} finally {
  ended.abort()
  await Promise.allSettled(working)
  await browser.close()
}
