import { defineConfig } from "vitest/config"

// One file, one worker: the suite measures time-outs of the server, so nothing else may compete
// with it for the cores.
export default defineConfig({
  test: {
    include: ["*.test.js"],
    testTimeout: 60_000,
    hookTimeout: 60_000,
    fileParallelism: false,
  },
})
