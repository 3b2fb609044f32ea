// One story of the publisher's client: `node round_trips.mjs STORY URL`.  Says `ok` at its end.

import assert from "node:assert/strict"
import {
  BackoffDefaults,
  createFetchWithBackoff,
  DurableStream,
  IdempotentProducer,
  StaleEpochError,
  stream,
} from "@durable-streams/client"

const [, , story, url] = process.argv
const JSON_TYPE = "application/json"
const BYTES_TYPE = "application/octet-stream"
const values = [{ a: 1 }, ["nested", [1, 2]], "word ü", 7, 1.5, null, true, { deep: { b: [] } }]

async function allJson(offset) {
  return (await stream({ url, offset, live: false })).json()
}

async function appendAll(handle, list) {
  for (const value of list) await handle.append(JSON.stringify(value))
}

// Everything up to `count` items, while `write` is called once the first of them are there.
async function follow(live, count, write) {
  const response = await stream({ url, offset: "-1", live })
  const found = []
  let written
  await new Promise((resolve, reject) => {
    response.closed.catch(reject)
    response.subscribeJson((batch) => {
      found.push(...batch.items)
      written ??= write().catch(reject)
      if (found.length >= count) resolve()
    })
  })
  await written
  response.cancel()
  return found
}

async function live(mode) {
  const handle = await DurableStream.create({ url, contentType: JSON_TYPE, body: '["before"]' })
  const found = await follow(mode, values.length + 1, () => appendAll(handle, values))
  assert.deepEqual(found, ["before", ...values])
}

const stories = {
  async json() {
    const handle = await DurableStream.create({ url, contentType: JSON_TYPE })
    const offsets = []
    for (const value of values) {
      await handle.append(JSON.stringify(value))
      offsets.push((await handle.head()).offset)
    }
    assert.deepEqual([...new Set(offsets)].sort(), offsets)
    assert.deepEqual(await allJson(), values)
    for (const [at, offset] of offsets.entries())
      assert.deepEqual(await allJson(offset), values.slice(at + 1))
  },

  async binary() {
    const handle = await DurableStream.create({ url, contentType: BYTES_TYPE })
    const parts = []
    for (let size = 1; size < 200_000; size *= 7)
      parts.push(Uint8Array.from({ length: size }, (_, at) => (at * 31 + size) % 256))
    for (const part of parts) await handle.append(part)
    const response = await stream({ url, live: false })
    assert.equal(response.contentType, BYTES_TYPE)
    assert.deepEqual(Buffer.from(await response.body()), Buffer.concat(parts))
  },

  live_long_poll: () => live("long-poll"),
  live_sse: () => live("sse"),

  async live_binary_sse() {
    const handle = await DurableStream.create({ url, contentType: BYTES_TYPE })
    const parts = [[0], [255, 254], [10, 13, 0]].map((list) => Uint8Array.from(list))
    await handle.append(parts[0])
    const response = await stream({ url, offset: "-1", live: "sse" })
    const wanted = Buffer.concat(parts)
    let found = Buffer.alloc(0)
    let written
    await new Promise((resolve, reject) => {
      response.closed.catch(reject)
      response.subscribeBytes((chunk) => {
        found = Buffer.concat([found, chunk.data])
        written ??= handle.append(parts[1]).then(() => handle.append(parts[2])).catch(reject)
        if (found.length >= wanted.length) resolve()
      })
    })
    await written
    response.cancel()
    assert.deepEqual(found, wanted)
  },

  async producer() {
    const handle = await DurableStream.create({ url, contentType: JSON_TYPE })
    const failures = []
    const options = { autoClaim: true, lingerMs: 1, onError: (error) => failures.push(error) }
    const producer = new IdempotentProducer(handle, "writer", options)
    const wanted = Array.from({ length: 500 }, (_, n) => ({ n }))
    for (const value of wanted) producer.append(JSON.stringify(value))
    await producer.flush()
    assert.deepEqual(failures, [])
    assert.deepEqual(await allJson(), wanted)
    // What was sent before and is sent once more changes nothing.
    const headers = { "content-type": JSON_TYPE, "producer-id": "writer" }
    Object.assign(headers, { "producer-epoch": "0", "producer-seq": "0" })
    const again = await fetch(url, { method: "POST", headers, body: '"not this"' })
    assert.equal(again.status, 204)
    assert.deepEqual(await allJson(), wanted)
    await producer.detach()
  },

  async killed_producer() {
    const handle = await DurableStream.create({ url, contentType: JSON_TYPE })
    const failures = []
    // It repeats a request that was not answered only if its `fetch` does, and in order only if
    // there is one at a time.
    const patient = createFetchWithBackoff(fetch, { ...BackoffDefaults, initialDelay: 20 })
    const onError = (error) => failures.push(error)
    const options = { lingerMs: 1, maxInFlight: 1, fetch: patient, onError }
    const producer = new IdempotentProducer(handle, "writer", options)
    const wanted = []
    for (let life = 0; life < 3; life += 1) {
      // One at a time, so that some are on their way when the server is killed.
      let restarted = false
      const restarting = fetch(process.env.INTEROP_RESTART_URL, { method: "POST" })
      restarting.then(() => (restarted = true))
      while (!restarted) {
        wanted.push({ n: wanted.length })
        producer.append(JSON.stringify(wanted.at(-1)))
        await new Promise((resolve) => setTimeout(resolve, 1))
      }
      await producer.flush()
    }
    assert.deepEqual(failures, [])
    assert.deepEqual(await allJson(), wanted)
    await producer.detach()
  },

  async fenced_producer() {
    const handle = await DurableStream.create({ url, contentType: JSON_TYPE })
    const failures = []
    const onError = (error) => failures.push(error)
    const older = new IdempotentProducer(handle, "writer", { epoch: 1, lingerMs: 1, onError })
    older.append('"from the older"')
    await older.flush()
    const newer = new IdempotentProducer(handle, "writer", { epoch: 2, lingerMs: 1, onError })
    newer.append('"from the newer"')
    await newer.flush()
    assert.deepEqual(failures, [])
    older.append('"too late"')
    await older.flush().catch(onError)
    assert.ok(failures.length >= 1 && failures.every((error) => error instanceof StaleEpochError))
    assert.deepEqual(await allJson(), ["from the older", "from the newer"])
  },

  async closed() {
    const handle = await DurableStream.create({ url, contentType: JSON_TYPE })
    await handle.append('"first"')
    const reading = stream({ url, offset: "-1", live: "sse" }).then(async (response) => {
      const found = []
      for await (const item of response.jsonStream()) found.push(item)
      return found
    })
    const { finalOffset } = await handle.close({ body: '"last"' })
    assert.equal((await handle.head()).offset, finalOffset)
    assert.deepEqual(await reading, ["first", "last"])
    await assert.rejects(handle.append('"more"'), (error) => error.status === 409)
  },
}

await stories[story]()
console.log("ok")
process.exit(0)
