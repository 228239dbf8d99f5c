// Polls the server once a second and draws what it says. Everything is a difference of two polls:
// the server counts, this page remembers.

const SECONDS = 120
const WINDOW = 10
const STAGES = ["head", "body", "mailbox", "decide", "staging", "journal", "wake", "write"]
const MORE = ["request", "wait", "long_poll_delivery", "sse_delivery", "journal_batch"]
const $ = (id) => document.getElementById(id)

const polls = []
const past = { operations: [[], [], []], data: [[], [], []], latency: [[], []], disk: [[], []] }
const pointed = {}

// --- Numbers as people read them --------------------------------------------------------------

const short = (n) => (n >= 100 ? n.toFixed(0) : n >= 10 ? n.toFixed(1) : n > 0 ? n.toFixed(2) : "0").replace(/\.0+$|(\.\d*?)0+$/, "$1")
const scaled = (n, step, units) => {
  let i = 0
  for (; n >= step && i < units.length - 1; i++) n /= step
  return short(n) + units[i]
}
const count = (n) => scaled(n, 1000, ["", "k", "M", "G"])
const bytes = (n) => scaled(n, 1024, [" B", " KiB", " MiB", " GiB", " TiB"])
const time = (us) => (us < 1 ? short(us * 1000) + " ns" : scaled(us, 1000, [" µs", " ms", " s"]))
const say = (n, form, unit = "") => (n == null ? "–" : form(n) + unit)

// --- What the counters say --------------------------------------------------------------------

const total = (poll, name) => poll.metrics.shards.reduce((sum, shard) => sum + shard[name], 0)
/** Growth per second of a counter; a server that was restarted begins at 0. */
const rate = (a, b, of) => Math.max(0, of(b) - of(a)) / Math.max(0.001, b.at - a.at)

/** What series `name` counted between two polls: [until µs, count], ascending. */
function between(a, b, name) {
  const now = b.latency.overall[name].steps_us
  if (a.latency.since !== b.latency.since) return now
  const old = new Map(a.latency.overall[name].steps_us)
  return now.map(([until, n]) => [until, n - (old.get(until) ?? 0)]).filter(([, n]) => n > 0)
}

/** A percentile of such steps, in µs; steps are 10 % wide, this is the middle of one. */
function percentile(steps, p) {
  const all = steps.reduce((sum, [, n]) => sum + n, 0)
  let left = all * p
  for (const [until, n] of steps) if ((left -= n) <= 0) return until * 0.954
  return steps.length > 0 ? steps.at(-1)[0] * 0.954 : null
}

// --- Drawing ----------------------------------------------------------------------------------

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim()
const COLOURS = ["--one", "--two", "--three"]

/** A cleared canvas in CSS pixels, crisp on any screen. */
function sheet(id) {
  const canvas = $(id)
  const { clientWidth: width, clientHeight: height } = canvas
  const ratio = devicePixelRatio || 1
  canvas.width = Math.round(width * ratio)
  canvas.height = Math.round(height * ratio)
  const pen = canvas.getContext("2d")
  pen.scale(ratio, ratio)
  pen.font = "12px system-ui, sans-serif"
  pen.lineJoin = "round"
  return { pen, width, height }
}

/** An axis of values: where a value goes, from 0 to 1, and which values are labelled. */
function axis(most, least, log, base) {
  if (log) {
    const low = Math.floor(Math.log10(Math.max(least, 1e-3)))
    const high = Math.max(low + 1, Math.ceil(Math.log10(Math.max(most, 1e-2))))
    const ticks = Array.from({ length: high - low + 1 }, (_, i) => 10 ** (low + i))
    return { at: (v) => (Math.log10(Math.max(v, 10 ** low)) - low) / (high - low), ticks }
  }
  const raw = Math.max(most, 4) / 4
  // Steps that read well: 20 k/s, but 32 KiB/s.
  const power = base ** Math.floor(Math.log(raw) / Math.log(base) + 1e-9)
  const steps = base === 2 ? [1, 2] : [1, 2, 5, 10]
  const step = steps.map((f) => f * power).find((s) => s >= raw) ?? base * power
  return { at: (v) => v / (4 * step), ticks: [0, 1, 2, 3, 4].map((i) => i * step) }
}

/** Lines over the last two minutes. `lines` are arrays that end now. */
function plot(id, names, form, unit, log) {
  const { pen, width, height } = sheet(id)
  const lines = past[id]
  const known = lines.flat().filter((v) => v != null)
  const y = axis(Math.max(0, ...known), Math.min(...known, Infinity), log, form === bytes ? 2 : 10)
  const labels = y.ticks.map((v) => form(v) + unit)
  const left = Math.ceil(Math.max(...labels.map((l) => pen.measureText(l).width))) + 10
  const [right, top, bottom] = [width - 10, 8, height - 22]
  const x = (i, n) => right - ((n - 1 - i) / (SECONDS - 1)) * (right - left)
  pen.lineWidth = 1
  y.ticks.forEach((v, i) => {
    const at = Math.round(bottom - y.at(v) * (bottom - top)) + 0.5
    pen.strokeStyle = colour("--line")
    pen.beginPath(), pen.moveTo(left, at), pen.lineTo(right, at), pen.stroke()
    pen.fillStyle = colour("--soft")
    pen.textAlign = "right"
    pen.fillText(labels[i], left - 6, at + 4)
  })
  for (const ago of width < 420 ? [120, 60, 0] : [120, 90, 60, 30, 0]) {
    pen.textAlign = ago === 0 ? "right" : ago === 120 ? "left" : "center"
    const at = right - (ago / SECONDS) * (right - left)
    pen.fillText(ago === 0 ? "now" : ago === 120 ? "2 min ago" : `−${ago} s`, at, height - 5)
  }
  lines.forEach((values, k) => {
    pen.strokeStyle = pen.fillStyle = colour(COLOURS[k])
    pen.lineWidth = 2
    pen.beginPath()
    let drawing = false
    values.forEach((v, i) => {
      if (v == null) return void (drawing = false)
      const [px, py] = [x(i, values.length), bottom - y.at(v) * (bottom - top)]
      drawing ? pen.lineTo(px, py) : pen.moveTo(px, py)
      // A lone second is a dot: a line of one point cannot be seen.
      if (values[i - 1] == null && values[i + 1] == null) pen.fillRect(px - 1.5, py - 1.5, 3, 3)
      drawing = true
    })
    pen.stroke()
  })
  const length = lines[0].length
  let index = length - 1
  if (pointed[id] != null && length > 0) {
    const share = (pointed[id] - left) / (right - left)
    index = Math.min(length - 1, Math.max(0, Math.round(length - 1 - (1 - share) * (SECONDS - 1))))
    pen.strokeStyle = colour("--soft")
    pen.lineWidth = 1
    pen.beginPath(), pen.moveTo(x(index, length), top), pen.lineTo(x(index, length), bottom), pen.stroke()
  }
  const items = names.map((name, k) => item("li", [key(k), `${name} ${say(lines[k][index], form, unit)}`]))
  if (index < length - 1) items.push(item("li", [`${length - 1 - index} s ago`]))
  $(`${id}-legend`).replaceChildren(...items)
}

/** One row a stage, its p50 and p99 on a common axis of times. */
function plotStages(rows) {
  const { pen, width, height } = sheet("stages")
  const known = rows.filter((row) => row.p99 != null)
  pen.fillStyle = colour("--soft")
  if (known.length === 0) return void pen.fillText(`No requests in the last ${WINDOW} s.`, 8, 24)
  const axisOf = axis(Math.max(...known.map((r) => r.p99)), Math.min(...known.map((r) => r.p50)), true)
  const left = Math.ceil(Math.max(...rows.map((r) => pen.measureText(r.name).width))) + 14
  const [right, bottom] = [width - 26, height - 24]
  const x = (us) => left + axisOf.at(us) * (right - left)
  axisOf.ticks.forEach((us) => {
    const at = Math.round(x(us)) + 0.5
    pen.strokeStyle = colour("--line")
    pen.beginPath(), pen.moveTo(at, 4), pen.lineTo(at, bottom), pen.stroke()
    pen.fillStyle = colour("--soft")
    pen.textAlign = "center"
    pen.fillText(time(us), at, height - 6)
  })
  const step = (bottom - 4) / rows.length
  rows.forEach(({ name, p50, p99 }, i) => {
    const at = 4 + step * (i + 0.5)
    pen.textAlign = "right"
    pen.fillStyle = colour(p99 == null ? "--soft" : "--ink")
    pen.fillText(name, left - 8, at + 4)
    if (p99 == null) return
    pen.strokeStyle = pen.fillStyle = colour("--one")
    pen.lineWidth = 2
    pen.beginPath(), pen.moveTo(x(p50), at), pen.lineTo(x(p99), at), pen.stroke()
    pen.beginPath(), pen.arc(x(p99), at, 5, 0, 7), pen.fill()
    pen.fillStyle = colour("--card")
    pen.beginPath(), pen.arc(x(p50), at, 4, 0, 7), pen.fill(), pen.stroke()
  })
}

function item(tag, children) {
  const element = document.createElement(tag)
  element.append(...children)
  return element
}

function key(k) {
  const element = document.createElement("i")
  element.className = `key ${["one", "two", "three"][k]}`
  return element
}

const facts = (id, pairs, wrap) => {
  const made = pairs.map(([name, value]) => [item("dt", [name]), item("dd", [value])])
  $(id).replaceChildren(...made.flatMap((pair) => (wrap ? [item("div", pair)] : pair)))
}

/** Rows of a name, a bar and what it says; `high` is where a bar turns red. */
function bars(id, rows) {
  const made = rows.map(({ name, value, max, high, text }) => {
    const meter = document.createElement("meter")
    Object.assign(meter, { max: Math.max(max, 1e-9), high: high ?? max, value })
    meter.title = text
    return [item("span", [name]), meter, item("span", [text])]
  })
  $(id).replaceChildren(...made.flat())
}

function table(a, b) {
  const head = item("tr", ["stage", "count", "p50", "p99", "what it is"].map((t) => item("th", [t])))
  const rows = [...STAGES, ...MORE].map((name) => {
    const steps = between(a, b, name)
    const n = steps.reduce((sum, [, m]) => sum + m, 0)
    const cells = [name, count(n), say(percentile(steps, 0.5), time), say(percentile(steps, 0.99), time)]
    return item("tr", [...cells, b.latency.meanings[name]].map((t) => item("td", [t])))
  })
  $("stage-table").replaceChildren(head, ...rows)
}

// --- Once a second ----------------------------------------------------------------------------

function draw() {
  const per = "/s"
  plot("operations", ["appends", "reads", "SSE events"], count, per)
  plot("data", ["received", "sent", "journal"], bytes, per)
  plot("latency", ["p50", "p99"], time, "", true)
  plot("disk", ["batch p50", "batch p99"], time, "", true)
  const [first, last] = [polls[0], polls.at(-1)]
  plotStages([...STAGES, "request"].map((name) => {
    const steps = between(first, last, name)
    return { name: name === "request" ? "all stages" : name, p50: percentile(steps, 0.5), p99: percentile(steps, 0.99) }
  }))
  table(first, last)
}

function take(poll) {
  const last = polls.at(-1)
  polls.push(poll)
  if (polls.length > WINDOW + 1) polls.shift()
  const { shards, version, durability } = poll.metrics
  $("version").textContent = `${version}, durability ${durability}`
  const sum = (name) => total(poll, name)
  const perSecond = (name) => (last ? rate(last, poll, (p) => total(p, name)) : 0)
  facts("tiles", [
    ["streams", count(sum("streams"))],
    ["connections", count(sum("connections"))],
    ["live readers", count(sum("live_readers"))],
    ["requests", `${count(perSecond("requests_total"))}/s`],
    ["refused (4xx, 5xx)", `${count(perSecond("refusals_total"))}/s`],
  ], true)
  const budget = (name, held, limit) => {
    const worst = Math.max(...shards.map((shard) => shard[held] / Math.max(1, shard[limit])))
    const text = `${bytes(sum(held))} of ${bytes(sum(limit))}` + (shards.length > 1 ? `, fullest ${(worst * 100).toFixed(0)} %` : "")
    return { name, value: worst, max: 1, high: 0.9, text }
  }
  bars("memory", [
    budget("streams", "memory_bytes", "memory_limit_bytes"),
    budget("requests", "body_bytes", "body_limit_bytes"),
    budget("answers", "unsent_bytes", "unsent_limit_bytes"),
  ])
  const free = Math.min(...shards.map((shard) => shard.disk_free_bytes))
  facts("disk-facts", [
    ["free", bytes(free)],
    ["written", `${bytes(perSecond("journal_batch_bytes_total"))}/s in ${count(perSecond("journal_batches_total"))} batches/s`],
    ["records", `${short(perSecond("journal_records_total") / Math.max(1e-9, perSecond("journal_batches_total")))} a batch`],
  ])
  if (!last) return
  const add = (plotted, values) => values.forEach((v, k) => {
    past[plotted][k].push(v)
    if (past[plotted][k].length > SECONDS) past[plotted][k].shift()
  })
  add("operations", ["appends_total", "reads_total", "sse_events_total"].map(perSecond))
  add("data", ["received_bytes_total", "sent_bytes_total", "journal_batch_bytes_total"].map(perSecond))
  for (const [plotted, name] of [["latency", "request"], ["disk", "journal_batch"]]) {
    const steps = between(last, poll, name)
    add(plotted, [percentile(steps, 0.5), percentile(steps, 0.99)])
  }
  const rates = shards.map((shard, i) => rate(polls[0], poll, (p) => p.metrics.shards[i]?.requests_total ?? 0))
  const most = Math.max(...rates)
  bars("shards", rates.map((value, i) => ({ name: `shard ${i}`, value, max: most, text: `${count(value)}/s` })))
  draw()
  document.documentElement.dataset.polls = String(past.latency[0].length)
}

async function ask(path) {
  const answer = await fetch(path, { signal: AbortSignal.timeout(10_000) })
  if (!answer.ok && path !== "/__ursula/ready") throw new Error(`${path}: status ${answer.status}`)
  return answer.json()
}

async function poll() {
  const state = $("state")
  try {
    const paths = ["/__ursula/metrics", "/__ursula/latency?hdr=false&steps=true"]
    const [metrics, latency] = await Promise.all(paths.map(ask))
    const { ready, reason } = await ask("/__ursula/ready")
    take({ at: performance.now() / 1000, metrics, latency })
    state.textContent = ready ? "serving" : `not ready: ${reason}`
    state.className = ready ? "good" : "bad"
  } catch (error) {
    state.textContent = `no answer: ${error.message}`
    state.className = "bad"
  }
  setTimeout(poll, 1000)
}

for (const id of Object.keys(past)) {
  $(id).addEventListener("pointermove", (event) => { pointed[id] = event.offsetX; if (polls.length > 1) draw() })
  $(id).addEventListener("pointerleave", () => { delete pointed[id]; if (polls.length > 1) draw() })
}
addEventListener("resize", () => polls.length > 1 && draw())
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => polls.length > 1 && draw())
poll()
