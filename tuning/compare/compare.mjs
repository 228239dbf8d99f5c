#!/usr/bin/env node
// Thalweg beside its peers: the same scenarios by the same load generator, in turn, on fixed cores; prints the README's table.
//
//   node tuning/compare/compare.mjs install            gets the peers by package name into $PEERS
//   node tuning/compare/compare.mjs [run] [options]    measures what is there, and says what is not
//
//   --rounds N        rounds of each pair, alternating; the interval comes from them        [5]
//   --duration T      of one measurement, as loadgen takes it                               [3s]
//   --only A,B        peers by name; --scenarios A,B the same for scenarios                 [all]
//   --server-core N   --load-core N                                                         [0, 1]
//   --quick           two rounds of one second: does it run, not how fast
//   --json DIR        keeps loadgen's results
//   --out FILE        the Markdown, also printed
//
// PEERS is where peers are kept (~/.cache/thalweg-peers); URSULA=1 installs Ursula too, half an hour of building. Thalweg and
// loadgen are built from this tree, or taken from THALWEG_BIN_DIR.
//
// Fair: a table holds one durability class, and each row names the peer's own setting for it; everything else is the peer's
// default. Both servers of a pair run, one of them idle, on one core; the load has another. `versus` takes them in turn, first and
// second by turns, so that a drift of the machine cancels. Redis speaks no HTTP: it gets its own benchmark tool, marked as such.
//
// Bounded: every measurement has a time limit, and every process that is started is ended by its number.

import { execFileSync, spawn, spawnSync } from "node:child_process"
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs"
import { createConnection } from "node:net"
import { cpus, homedir, release, tmpdir, totalmem } from "node:os"
import { dirname, join } from "node:path"
import { fileURLToPath } from "node:url"

const ROOT = join(dirname(fileURLToPath(import.meta.url)), "..", "..")
const PEERS = process.env.PEERS ?? join(homedir(), ".cache", "thalweg-peers")
const FIRST_PORT = 14500
const READY_MS_MAX = 20_000

// --- What is measured -------------------------------------------------------------------------------------------------------

// `figure` is the line of `versus` that goes into the table; `more` is a second one, shown beside it.
const SCENARIOS = {
  "append-1": {
    what: "256 B appends, 1 connection",
    args: ["append", "--connections", "1"],
    figure: "append p50 ms",
    more: "append p99 ms",
  },
  "append-64": {
    what: "256 B appends, 64 connections",
    args: ["append", "--connections", "64"],
    figure: "append per s",
    more: "append p99 ms",
    redis: 64,
  },
  "append-256": {
    what: "256 B appends, 256 connections",
    args: ["append", "--connections", "256"],
    figure: "append per s",
    more: "append p99 ms",
    redis: 256,
  },
  read: {
    what: "catch-up of 30 MB streams, 4 connections",
    args: ["read", "--connections", "4", "--messages", "120000"],
    streams: 4,
    figure: "read MB/s",
    more: "read p99 ms",
  },
  tail: {
    what: "SSE, 1,000 readers of one stream, 50 appends/s of 100 B",
    args: ["tail", "--connections", "1", "--subscribers", "1000", "--rate", "50", "--payload", "100"],
    streams: 1,
    figure: "delivery p50 ms",
    more: "delivery p99 ms",
  },
}
const STREAMS = 500

const bin = (...path) => join(PEERS, ...path)
const APPENDS = ["append-1", "append-64", "append-256"]

// A peer: how to get it, how to start it in a directory on a port, and what loadgen must know of it.
const PEER_LIST = [
  {
    name: "electric",
    title: "Electric `durable-streams` 0.1.5",
    install: [["cargo", "install", "durable-streams", "--version", "0.1.5", "--locked", "--root", bin("electric")]],
    needs: bin("electric", "bin", "durable-streams-server"),
    target: "base",
    classes: { sync: ["`--durability wal`", "wal"], memory: ["`--durability memory`", "memory"] },
    start: (port, dir, mode) => [
      [bin("electric", "bin", "durable-streams-server"), "--port", port, "--data-dir", dir, "--durability", mode],
    ],
  },
  {
    name: "ursula",
    title: "`ursula` 0.11.5",
    optional: "URSULA",
    install: [["cargo", "install", "ursula", "--version", "0.11.5", "--locked", "--root", bin("ursula")]],
    needs: bin("ursula", "bin", "ursula"),
    target: "ursula",
    classes: { sync: ["disk log, `fsync = \"always\"`", "always"] },
    start: (port, dir, mode) => {
      const config = join(dir, "ursula.toml")
      writeFileSync(
        config,
        `[server]\nlisten = "127.0.0.1:${port}"\nadmin_listen = "127.0.0.1:${port + 1000}"\ncluster_id = "compare"\n` +
          `[raft]\nnode_id = 1\n[raft.wal]\npath = "${join(dir, "wal")}"\nfsync = "${mode}"\n` +
          `[[raft.peers]]\nnode_id = 1\nurl = "http://127.0.0.1:${port}"\n`
      )
      return [[bin("ursula", "bin", "ursula"), "server", "--config", config]]
    },
  },
  {
    name: "ds-server",
    title: "`durable-streams-server` 0.3.0",
    install: [
      ["cargo", "install", "durable-streams-server", "--version", "0.3.0", "--locked", "--root", bin("ds-server")],
    ],
    needs: bin("ds-server", "bin", "durable-streams-server"),
    target: "base",
    path: "/v1/stream",
    classes: { sync: ["`file-durable`", "file-durable"], memory: ["`memory`", "memory"] },
    start: (port, dir, mode) => [
      [bin("ds-server", "bin", "durable-streams-server")],
      { DS_SERVER__BIND_ADDRESS: `127.0.0.1:${port}`, DS_STORAGE__MODE: mode, DS_STORAGE__DATA_DIR: dir },
    ],
  },
  {
    name: "npm",
    title: "`@durable-streams/server` 0.3.7",
    install: [
      ["npm", "install", "--prefix", bin("npm"), "--no-audit", "--no-fund", "--ignore-scripts", "@durable-streams/server@0.3.7"],
    ],
    needs: bin("npm", "node_modules", "@durable-streams", "server", "package.json"),
    target: "base",
    // Its pool of 100 open files cannot be raised by its options, and beyond it appends answer 404.
    streams: 100,
    note: "100 streams",
    classes: { sync: ["file mode", "file"], memory: ["in memory", ""] },
    start: (port, dir, mode) => {
      const options = { port, host: "127.0.0.1", ...(mode && { dataDir: dir }) }
      const code =
        `import { DurableStreamTestServer } from "@durable-streams/server";` +
        `await new DurableStreamTestServer(${JSON.stringify(options)}).start();`
      return [[process.execPath, "--input-type=module", "--eval", code], {}, bin("npm")]
    },
  },
  {
    name: "redis",
    title: "Redis, `XADD`",
    install: [["apt-get", "install", "-y", "--no-install-recommends", "redis-server"]],
    needs: "redis-server",
    tool: true,
    note: "by redis-benchmark",
    scenarios: ["append-64", "append-256"],
    classes: { sync: ["`appendfsync always`", "always"], memory: ["no AOF", ""] },
    start: (port, dir, mode) => [
      ["redis-server", "--port", port, "--bind", "127.0.0.1", "--dir", dir, "--save", "", "--appendonly", mode ? "yes" : "no"].concat(
        mode ? ["--appendfsync", mode] : []
      ),
    ],
  },
  {
    name: "nginx",
    title: "nginx, `return 204`",
    install: [["apt-get", "install", "-y", "--no-install-recommends", "nginx-light"]],
    needs: "nginx",
    rawPost: "/",
    note: "keeps nothing",
    scenarios: APPENDS,
    classes: { memory: ["one worker", ""] },
    start: (port, dir) => {
      writeFileSync(
        join(dir, "nginx.conf"),
        `daemon off; master_process off; pid ${dir}/pid; error_log stderr crit; events { worker_connections 4096; }\n` +
          `http { access_log off; client_body_temp_path ${dir}/body; keepalive_requests 1000000000;\n` +
          `server { listen 127.0.0.1:${port}; location / { return 204; } } }\n`
      )
      return [["nginx", "-p", dir, "-c", join(dir, "nginx.conf")]]
    },
  },
]

const CLASSES = {
  sync: { title: "Durable before the answer", thalweg: "sync" },
  memory: { title: "In memory, or left to the kernel", thalweg: "os" },
}

// --- Command line -----------------------------------------------------------------------------------------------------------

const words = process.argv.slice(2)
const command = words[0] && !words[0].startsWith("--") ? words.shift() : "run"
const option = (name, otherwise) => {
  const at = words.indexOf(`--${name}`)
  return at < 0 ? otherwise : words[at + 1]
}
const known = ["rounds", "duration", "only", "scenarios", "server-core", "load-core", "quick", "json", "out"]
for (const word of words.filter((word) => word.startsWith("--"))) {
  if (!known.includes(word.slice(2))) fail(`unknown option ${word}; the head of this file has them`)
}
const quick = words.includes("--quick")
const rounds = Number(option("rounds", quick ? 2 : 5))
const duration = option("duration", quick ? "1s" : "3s")
const serverCore = option("server-core", "0")
const loadCore = option("load-core", "1")
const list = (name, all) => {
  const chosen = option(name)?.split(",") ?? all
  const strange = chosen.filter((one) => !all.includes(one))
  if (strange.length > 0) fail(`no such ${name}: ${strange.join(", ")}; there are ${all.join(", ")}`)
  return chosen
}
const wantedPeers = list("only", PEER_LIST.map((peer) => peer.name))
const wantedScenarios = list("scenarios", Object.keys(SCENARIOS))
const keep = option("json")

function fail(text) {
  console.error(`compare: ${text}`)
  process.exit(1)
}

function say(text) {
  console.error(`compare: ${text}`)
}

// --- Peers: there or not ----------------------------------------------------------------------------------------------------

const found = (needs) =>
  needs.includes("/") ? existsSync(needs) : spawnSync("sh", ["-c", `command -v ${needs}`]).status === 0

function install() {
  mkdirSync(PEERS, { recursive: true })
  for (const peer of PEER_LIST.filter((peer) => wantedPeers.includes(peer.name))) {
    if (found(peer.needs)) {
      say(`${peer.name}: there`)
    } else if (peer.optional && process.env[peer.optional] !== "1") {
      say(`${peer.name}: skipped, it builds for half an hour; ${peer.optional}=1 installs it`)
    } else {
      for (const [program, ...args] of peer.install) {
        say(`${peer.name}: ${program} ${args.join(" ")}`)
        if (spawnSync(program, args, { stdio: "inherit" }).status !== 0) say(`${peer.name}: not installed`)
      }
    }
  }
}

// --- Servers ----------------------------------------------------------------------------------------------------------------

const running = new Set()
let nextPort = FIRST_PORT

/** Starts a server on the servers' core; resolves when its port answers. */
async function start(name, make) {
  const dir = mkdtempSync(join(scratch, `${name}-`))
  const port = nextPort++
  const [line, env, cwd] = make(port, dir)
  const child = spawn("taskset", ["-c", serverCore, ...line.map(String)], {
    env: { ...process.env, ...env },
    cwd: cwd ?? dir,
    stdio: ["ignore", "ignore", "pipe"],
  })
  const server = { name, port, pid: child.pid, child, dir, said: "" }
  child.stderr.on("data", (text) => (server.said = (server.said + text).slice(-2000)))
  child.on("exit", () => (server.ended = true))
  running.add(server)
  const limit = Date.now() + READY_MS_MAX
  while (!server.ended && Date.now() < limit) {
    if (await answers(port)) return server
    await new Promise((resolve) => setTimeout(resolve, 100))
  }
  await stop(server)
  throw new Error(`${name} did not start: ${server.said.trim().split("\n").slice(-3).join(" | ")}`)
}

function answers(port) {
  return new Promise((resolve) => {
    const socket = createConnection({ port, host: "127.0.0.1" })
    const end = (result) => {
      socket.destroy()
      resolve(result)
    }
    socket.on("connect", () => end(true)).on("error", () => end(false))
  })
}

async function stop(server) {
  if (!server.ended) {
    const ended = new Promise((resolve) => server.child.on("exit", resolve))
    server.child.kill("SIGTERM")
    const impatient = setTimeout(() => server.child.kill("SIGKILL"), 15_000)
    await ended
    clearTimeout(impatient)
  }
  running.delete(server)
  rmSync(server.dir, { recursive: true, force: true })
}

function thalwegLine(durability) {
  return (port, dir) => [
    [program("thalweg"), "serve", "--listen", `127.0.0.1:${port}`, "--admin-listen", `127.0.0.1:${port + 1000}`,
     "--data-dir", join(dir, "data"), "--shards", "1", "--durability", durability],
  ]
}

// --- Measuring --------------------------------------------------------------------------------------------------------------

function program(name) {
  return join(process.env.THALWEG_BIN_DIR ?? join(process.env.CARGO_TARGET_DIR ?? join(ROOT, "target"), "release"), name)
}

function workload(scenario, streams) {
  const { args } = scenario
  return [...args, "--streams", String(scenario.streams ?? streams), "--duration", duration, "--warmup", "1s", "--cpus", loadCore, "--quiet"]
}

/** Milliseconds that one run may take, with its filling and reading back. */
const runMsMax = () => 60_000 + 2 * toMs(duration)

function toMs(text) {
  const [, number, unit] = /^([\d.]+)(ms|s|m)?$/.exec(text) ?? fail(`${text}: no duration`)
  return Number(number) * { ms: 1, s: 1000, m: 60_000 }[unit ?? "s"]
}

/** Runs a program to its end without stopping this one, so that the servers' output is read meanwhile. */
function finish(file, args, timeout) {
  return new Promise((resolve) => {
    const child = spawn(file, args, { stdio: ["ignore", "pipe", "pipe"], timeout })
    let out = ""
    let error = ""
    child.stdout.on("data", (text) => (out += text))
    child.stderr.on("data", (text) => (error += text))
    child.on("error", (cause) => resolve({ code: -1, out, error: String(cause) }))
    child.on("close", (code, signal) => resolve({ code: code ?? -1, out, error: signal ? `ended by ${signal}` : error }))
  })
}

/** `loadgen versus`: the figures of both sides and their ratio. */
async function versus(key, peer, ours, theirs) {
  const scenario = SCENARIOS[key]
  const file = join(keep ?? scratch, `${key}-${peer.name}-${ours.name}.json`)
  const url = (port, path) => `http://127.0.0.1:${port}${path ?? ""}`
  const args = [
    "versus", "--a", url(ours.port), "--a-target", "thalweg-base", "--a-pid", ours.pid, "--b", url(theirs.port, peer.path),
    "--b-pid", theirs.pid, "--rounds", rounds, "--json", file,
    ...(peer.rawPost ? ["--b-raw-post", peer.rawPost] : ["--b-target", peer.target]),
    ...workload(scenario, peer.streams ?? STREAMS),
  ]
  const result = await finish(program("loadgen"), args.map(String), rounds * 2 * runMsMax())
  if (!existsSync(file)) return { failed: result.error.trim().split("\n").at(-1) }
  const report = JSON.parse(readFileSync(file, "utf8"))
  const line = (name) => report.ratios.find((one) => one.name === name)
  const main = line(scenario.figure)
  if (!main) return { failed: "nothing to compare" }
  // How many of one side's runs were not valid, and why the first of them was not.
  const doubt = (side) => {
    const invalid = report.rounds.map((round) => round[side]).filter((one) => !one.valid)
    return invalid.length > 0 && `${invalid.length} of ${rounds} runs not valid: ${invalid[0].invalid_because[0]}`
  }
  return { main, more: line(scenario.more), doubt: [doubt(0), doubt(1)], revision: report.rounds[0][0].revision }
}

/** Redis: its own tool against loadgen on Thalweg, in turn. */
async function againstTool(key, ours, theirs) {
  const scenario = SCENARIOS[key]
  const measureOurs = async () => {
    const file = join(scratch, "ours.json")
    const args = [...workload(scenario, STREAMS), "--url", `http://127.0.0.1:${ours.port}`, "--json", file]
    const result = await finish(program("loadgen"), args, runMsMax())
    if (result.code === 1) throw new Error(result.error)
    const append = JSON.parse(readFileSync(file, "utf8")).operations.find((one) => one.name === "append")
    return [append.per_s, append.latency_us.p99 / 1e3]
  }
  // Its length is a number of requests: some 20,000 a second make about the same time.
  const requests = Math.round((toMs(duration) / 1000) * 20_000)
  const measureTheirs = async () => {
    const args = ["-c", loadCore, "redis-benchmark", "-p", theirs.port, "-c", scenario.redis, "-n", requests, "-r", STREAMS, "--csv",
                  "XADD", "s:__rand_int__", "*", "d", "x".repeat(256)]
    const result = await finish("taskset", args.map(String), runMsMax())
    const values = result.out.trim().split("\n").at(-1).split(",").map((cell) => Number(cell.replaceAll('"', "")))
    const [, perS, , , , , p99] = values
    if (!(perS > 0)) throw new Error(`redis-benchmark: ${result.error || result.out}`)
    return [perS, p99]
  }
  const a = []
  const b = []
  for (let round = 0; round < rounds; round++) {
    if (round % 2 === 0) a.push(await measureOurs())
    b.push(await measureTheirs())
    if (round % 2 === 1) a.push(await measureOurs())
  }
  const figure = (at) => ({ a: a.map((one) => one[at]), b: b.map((one) => one[at]) })
  const main = figure(0)
  return { main: { ...main, ratio: ratio(main) }, more: figure(1) }
}

/** Mean and 95 % interval of the ratios of paired rounds, on their logarithms, as loadgen reckons it. */
function ratio({ a, b }) {
  const T = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262]
  const logs = a.map((value, at) => Math.log(value / b[at]))
  const mean = logs.reduce((sum, value) => sum + value, 0) / logs.length
  const variance = logs.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (logs.length - 1)
  const half = (T[logs.length - 2] ?? 1.96) * Math.sqrt(variance / logs.length)
  return { mean: Math.exp(mean), low: Math.exp(mean - half), high: Math.exp(mean + half) }
}

// --- The table --------------------------------------------------------------------------------------------------------------

function median(values) {
  const sorted = [...values].sort((x, y) => x - y)
  const middle = sorted.length >> 1
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2
}

function precise(value) {
  return value >= 100 ? Math.round(value).toLocaleString("en-US") : value.toPrecision(3)
}

/** A figure with its unit, and the second one in brackets. */
function cell(scenario, { main, more }, side) {
  const show = (figure, name) => {
    const [, quantity, unit] = /^\S+ (?:(p[\d.]+) )?(.*)$/.exec(name)
    const value = precise(median(figure[side]))
    return unit === "per s" ? `${value}/s` : `${quantity ? `${quantity} ` : ""}${value} ${unit}`
  }
  return more ? `${show(main, scenario.figure)} (${show(more, scenario.more)})` : show(main, scenario.figure)
}

function markdown(rows, missing) {
  const machine = `${cpus().length} × ${cpus()[0].model.trim()}, ${(totalmem() / 2 ** 30).toFixed(0)} GiB, Linux ${release()}`
  const revision = rows.map((row) => row.result.revision).find(Boolean)
  const lines = [
    `Measured on ${new Date().toISOString().slice(0, 10)}: ${machine}. Thalweg${revision ? ` ${revision}` : ""}, one shard on core ` +
      `${serverCore}, beside one peer at a time on the same core; load on core ${loadCore}. ${rounds} alternating rounds of ${duration}; medians, ` +
      `and the ratio Thalweg/peer with its 95 % interval. Rates: more is better; times: less is.`,
    ...(quick ? ["", "**A quick run: it shows that the comparison works, and nothing else.**"] : []),
  ]
  for (const [name, kind] of Object.entries(CLASSES)) {
    const ofClass = rows.filter((row) => row.kind === name)
    if (ofClass.length === 0) continue
    lines.push("", `**${kind.title}** (Thalweg: \`--durability ${kind.thalweg}\`)`, "")
    lines.push("| Case | Peer and its setting | Thalweg | Peer | Thalweg/peer |", "|---|---|---|---|---|")
    for (const { key, peer, setting, result } of ofClass) {
      const scenario = SCENARIOS[key]
      const who = `${peer.title}, ${setting}${peer.note ? ` (${peer.note})` : ""}`
      if (result.failed) {
        lines.push(`| ${scenario.what} | ${who} | | failed: ${result.failed} | |`)
        continue
      }
      const { ratio } = result.main
      const interval = ratio ? `${ratio.mean.toFixed(2)} (${ratio.low.toFixed(2)} to ${ratio.high.toFixed(2)})` : "–"
      const sides = ["a", "b"].map((side, at) => cell(scenario, result, side) + (result.doubt?.[at] ? " †" : ""))
      lines.push(`| ${scenario.what} | ${who} | ${sides.join(" | ")} | ${interval} |`)
    }
  }
  const doubts = rows.flatMap(({ key, peer, setting, result }) =>
    (result.doubt ?? []).map((doubt, side) => {
      const who = side === 0 ? `Thalweg beside ${peer.title}` : peer.title
      return doubt && `† ${SCENARIOS[key].what}, ${who}, ${setting}: ${doubt}`
    })
  )
  const notes = [...doubts.filter(Boolean), ...missing]
  if (notes.length > 0) lines.push("", ...notes.map((note) => `- ${note}`))
  return lines.join("\n") + "\n"
}

// --- All of it --------------------------------------------------------------------------------------------------------------

const scratch = mkdtempSync(join(tmpdir(), "thalweg-compare-"))
process.on("exit", () => {
  for (const server of running) server.child.kill("SIGKILL")
  rmSync(scratch, { recursive: true, force: true })
})
for (const signal of ["SIGINT", "SIGTERM"]) process.on(signal, () => process.exit(130))

async function run() {
  if (!process.env.THALWEG_BIN_DIR) {
    execFileSync("cargo", ["build", "--release", "--locked", "--workspace"], { cwd: ROOT, stdio: "inherit" })
  }
  if (keep) mkdirSync(keep, { recursive: true })
  const rows = []
  const missing = []
  for (const peer of PEER_LIST.filter((peer) => wantedPeers.includes(peer.name))) {
    if (!found(peer.needs)) {
      missing.push(`${peer.title}: not here, not measured`)
      say(`${missing.at(-1)} (\`${peer.optional ? `${peer.optional}=1 ` : ""}compare.mjs install\` gets it)`)
      continue
    }
    for (const [kind, [setting, mode]] of Object.entries(peer.classes)) {
      for (const key of wantedScenarios.filter((key) => (peer.scenarios ?? wantedScenarios).includes(key))) {
        say(`${peer.name} ${setting}: ${SCENARIOS[key].what}`)
        const pair = []
        let result
        try {
          // New for each case, so that none pays for the streams of the one before.
          pair.push(await start(`thalweg-${CLASSES[kind].thalweg}`, thalwegLine(CLASSES[kind].thalweg)))
          pair.push(await start(peer.name, (port, dir) => peer.start(port, dir, mode)))
          result = await (peer.tool ? againstTool(key, ...pair) : versus(key, peer, ...pair))
        } catch (error) {
          result = { failed: error.message.split("\n")[0] }
        }
        for (const server of pair) await stop(server)
        rows.push({ kind, key, peer, setting, result })
        if (result.failed) say(`failed: ${result.failed}`)
      }
    }
  }
  const text = markdown(rows, missing)
  if (option("out")) writeFileSync(option("out"), text)
  process.stdout.write(text)
}

if (command === "install") install()
else if (command === "run") await run()
else fail(`${command}: install or run`)
