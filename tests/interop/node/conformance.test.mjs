// The publisher's conformance suite against the server at INTEROP_URL.  With INTEROP_RESTART_URL,
// the server is restarted by a request to that address before each group of tests but the first.

import { runConformanceTests } from "@durable-streams/server-conformance-tests"
import { beforeEach } from "vitest"

const restartUrl = process.env.INTEROP_RESTART_URL
const RESTART_MS_MAX = 60_000

function groupOf(task) {
  let outermost = task.suite
  while (outermost.suite) outermost = outermost.suite
  return outermost.name
}

async function restart() {
  const answer = await fetch(restartUrl, { method: "POST" })
  if (answer.status !== 200) throw new Error(`no restart: ${answer.status}`)
}

if (restartUrl) {
  let current
  let ready
  beforeEach(async ({ task }) => {
    const group = groupOf(task)
    if (group !== current) {
      ready = current === undefined ? undefined : restart()
      current = group
    }
    await ready // also by tests of the group that run beside the first
  }, RESTART_MS_MAX)
}

runConformanceTests({
  baseUrl: process.env.INTEROP_URL,
  longPollTimeoutMs: Number(process.env.INTEROP_LONG_POLL_MS),
  subscriptions: true,
})
