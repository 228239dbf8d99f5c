// Runs named checks side by side and prints one JSON report, which tests/clients.rs judges.
//
// A check that throws fails; what it returns is kept as its facts. A check that never ends fails
// too, after a deadline that only a broken server or client can reach.

import { randomUUID } from "node:crypto"
import { setTimeout as sleep } from "node:timers/promises"

export { sleep }

/** How long anything that must happen may take. Nothing asserts that something was quick. */
export const PATIENCE_MS = 60_000

/** How long a check may take, side by side with all the others. */
const CHECK_MS = 2 * PATIENCE_MS

/** Resolves as `check` does, or throws when that takes too long. */
async function bounded(check) {
  let timer
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error("it does not end")), CHECK_MS)
  })
  try {
    return await Promise.race([check, late])
  } finally {
    clearTimeout(timer)
  }
}

/** Calls `probe` until it gives a value that is not false. */
export async function eventually(what, probe) {
  const deadline = Date.now() + PATIENCE_MS
  for (;;) {
    const value = await probe()
    if (value) return value
    if (Date.now() > deadline) throw new Error(`never happened: ${what}`)
    await sleep(20)
  }
}

/** A path on the base surface that no other check uses. */
export const basePath = () => `/v1/stream/clients/${randomUUID()}`

/** A path on the bucket surface that no other check uses. */
export const bucketPath = () => `/clients/${randomUUID()}`

/** Runs `checks`, an object of async functions, and prints the report. */
export async function report(checks) {
  const outcomes = Object.entries(checks).map(async ([name, check]) => {
    const begun = Date.now()
    try {
      const facts = (await bounded(check())) ?? {}
      return { name, ok: true, facts, ms: Date.now() - begun }
    } catch (error) {
      const why = error?.stack ?? String(error)
      return { name, ok: false, facts: {}, why, ms: Date.now() - begun }
    }
  })
  const text = JSON.stringify({ checks: await Promise.all(outcomes) })
  await new Promise((resolve) => process.stdout.write(`${text}\n`, resolve))
}
