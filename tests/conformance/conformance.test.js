// The official suite, called from a file of ours: its own command line finds no test when npm
// installs it flat, because vitest ignores `node_modules`.

import { runConformanceTests } from "@durable-streams/server-conformance-tests"

const baseUrl = process.env.CONFORMANCE_URL
if (!baseUrl) {
  throw new Error("CONFORMANCE_URL must name the server, for example http://127.0.0.1:4437")
}

runConformanceTests({
  baseUrl,
  // How long the server under test waits before it answers a long-poll with 204.
  longPollTimeoutMs: Number(process.env.CONFORMANCE_LONG_POLL_MS ?? 20_000),
  subscriptions: false,
})
