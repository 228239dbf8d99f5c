// An HTTP proxy that loses every third exchange, each time in another way:
//
//   answer   the request reaches the server, its whole answer arrives here, the client gets none
//   cut      as above, but the client gets the first bytes of the answer before the reset
//   request  the client's connection breaks before the server sees the request
//
// In the first two the server has done the work and the client cannot know it: a retry has to be
// recognised, or the data is there twice.
//
// As a program: `node fault_proxy.mjs http://HOST:PORT` prints {"url":…} and ends with its stdin;
// `GET /__faults` tells the counts so far.

import http from "node:http"
import { pathToFileURL } from "node:url"

const EVERY = 3
const KINDS = ["answer", "cut", "request"]

/** Starts a proxy before `upstream`; gives its URL, its counts and a way to stop it. */
export async function startFaultProxy(upstream) {
  const counts = { requests: 0, answer: 0, cut: 0, request: 0 }
  // A new connection for each request: a fault must be one of ours, never a stale connection.
  const agent = new http.Agent({ keepAlive: false })
  let lost = 0

  const server = http.createServer(async (request, response) => {
    if (request.url === "/__faults") {
      response.end(JSON.stringify(counts))
      return
    }
    counts.requests += 1
    const kind = counts.requests % EVERY === 0 ? KINDS[lost++ % KINDS.length] : undefined
    try {
      const body = await collect(request)
      if (kind === "request") {
        counts.request += 1
        request.socket.destroy()
        return
      }
      const answer = await exchange(upstream, agent, request, body)
      if (kind === undefined) {
        response.writeHead(answer.status, answer.headers)
        response.end(answer.body)
        return
      }
      counts[kind] += 1
      if (kind === "cut") {
        const begin = `HTTP/1.1 ${answer.status} Cut\r\nContent-Le`
        await new Promise((resolve) => request.socket.write(begin, resolve))
      }
      request.socket.destroy()
    } catch (error) {
      process.stderr.write(`fault proxy: ${error}\n`)
      request.socket.destroy()
    }
  })
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve))
  return {
    url: `http://127.0.0.1:${server.address().port}`,
    counts,
    stop: () => {
      server.closeAllConnections()
      server.close()
    },
  }
}

async function collect(stream) {
  const pieces = []
  for await (const piece of stream) pieces.push(piece)
  return Buffer.concat(pieces)
}

function exchange(upstream, agent, request, body) {
  const { host, connection, "transfer-encoding": _, ...headers } = request.headers
  if (!["GET", "HEAD", "DELETE"].includes(request.method)) headers["content-length"] = body.length
  return new Promise((resolve, reject) => {
    const target = new URL(request.url, upstream)
    const forward = http.request(target, { method: request.method, headers, agent }, (answer) => {
      const { connection, "transfer-encoding": _, ...kept } = answer.headers
      collect(answer).then(
        (body) => resolve({ status: answer.statusCode, headers: kept, body }),
        reject,
      )
    })
    forward.on("error", reject)
    forward.end(body)
  })
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const proxy = await startFaultProxy(process.argv[2])
  process.stdout.write(`${JSON.stringify({ url: proxy.url })}\n`)
  process.stdin.on("end", () => process.exit(0)).resume()
}
