// One story of the publisher's SDK: `node s2_round_trips.mjs STORY URL`.  Says `ok` at its end.
// INTEROP_TRANSPORT is `s2s` or `fetch`, INTEROP_COMPRESSION `none`, `gzip` or `zstd`.

import assert from "node:assert/strict"
import {
  AppendInput,
  AppendRecord,
  BatchTransform,
  FencingTokenMismatchError,
  Producer,
  RangeNotSatisfiableError,
  S2,
  S2Error,
  SeqNumMismatchError,
} from "@s2-dev/streamstore"

const [, , story, url] = process.argv
const forceTransport = process.env.INTEROP_TRANSPORT
const compression = process.env.INTEROP_COMPRESSION
const basinName = `interop-ts-${process.pid}`
const KEY = Uint8Array.from({ length: 32 }, (_, at) => at + 1)

const s2 = new S2({
  accessToken: "any",
  endpoints: { account: url, basin: url },
  ...(compression && compression !== "none" ? { compression } : {}),
  retry: { maxAttempts: 20, requestTimeoutMillis: 20_000 },
})

async function newStream(config, name = "events/ü", options = {}) {
  await s2.basins.create({ basin: basinName, config })
  const basin = s2.basin(basinName)
  await basin.streams.create({ stream: name })
  return basin.stream(name, { forceTransport, ...options })
}

const text = (body) => AppendRecord.string({ body })
const input = (bodies, options) => AppendInput.create(bodies.map(text), options)

async function allOf(stream, from, stop, as = "string") {
  const found = []
  for await (const record of await stream.readSession({ start: { from }, stop }, { as })) {
    found.push(record)
  }
  return found
}

async function failure(promise) {
  try {
    await promise
  } catch (error) {
    return error
  }
  assert.fail("nothing failed")
}

const stories = {
  async basins() {
    const made = await s2.basins.create({ basin: basinName })
    assert.equal(made.name, basinName)
    assert.equal((await s2.basins.ensure({ basin: basinName })).result, "noop")
    const config = { createStreamOnAppend: true }
    assert.equal((await s2.basins.ensure({ basin: basinName, config })).result, "updated")
    assert.equal((await s2.basins.getConfig({ basin: basinName })).createStreamOnAppend, true)
    const changed = await s2.basins.reconfigure({
      basin: basinName,
      defaultStreamConfig: { retentionPolicy: { ageSecs: 60 } },
    })
    assert.deepEqual(changed.defaultStreamConfig.retentionPolicy, { ageSecs: 60 })
    const names = []
    for await (const info of s2.basins.listAll({ prefix: basinName })) names.push(info.name)
    assert.deepEqual(names, [basinName])
    const twice = await failure(s2.basins.create({ basin: basinName }))
    assert.equal(twice.code, "resource_already_exists")
    await s2.basins.delete({ basin: basinName })
  },

  async streams() {
    await s2.basins.create({ basin: basinName })
    const { streams } = s2.basin(basinName)
    for (const stream of ["b", "a/x y", "c"]) await streams.create({ stream })
    assert.equal((await streams.ensure({ stream: "b" })).result, "noop")
    const config = await streams.reconfigure({
      stream: "b",
      retentionPolicy: { infinite: {} },
      timestamping: { mode: "arrival" },
    })
    assert.equal(config.timestamping.mode, "arrival")
    assert.deepEqual(await streams.getConfig({ stream: "b" }), config)
    const names = []
    for await (const info of streams.listAll()) names.push(info.name)
    assert.deepEqual(names, ["a/x y", "b", "c"])
    await streams.delete({ stream: "b" })
    const absent = await failure(streams.getConfig({ stream: "never" }))
    assert.equal(absent.code, "stream_not_found")
  },

  async unary() {
    const stream = await newStream()
    assert.equal((await stream.checkTail()).tail.seqNum, 0)
    const headers = [["kind", "greeting"]]
    const bytes = Uint8Array.from({ length: 3000 }, (_, at) => (at * 7) % 256)
    const ack = await stream.append(
      AppendInput.create([
        AppendRecord.string({ body: "grüße", headers, timestamp: 5 }),
        AppendRecord.bytes({ body: bytes, headers: [[new Uint8Array([255]), bytes.slice(0, 9)]] }),
      ]),
    )
    assert.deepEqual([ack.start.seqNum, ack.end.seqNum, ack.tail.seqNum], [0, 2, 2])
    const asText = await stream.read({ start: { from: { seqNum: 0 } }, stop: { limits: { count: 1 } } })
    assert.equal(asText.records[0].body, "grüße")
    assert.deepEqual(asText.records[0].headers, headers)
    assert.equal(asText.records[0].timestamp.getTime(), 5)
    const asBytes = await stream.read({ start: { from: { tailOffset: 1 } } }, { as: "bytes" })
    assert.deepEqual([...asBytes.records[0].body], [...bytes])
    assert.deepEqual([...asBytes.records[0].headers[0][0]], [255])
    const beyond = await failure(stream.read({ start: { from: { seqNum: 9 } } }))
    assert.ok(beyond instanceof RangeNotSatisfiableError)
  },

  async conditions() {
    const stream = await newStream()
    await stream.append(input(["a"], { matchSeqNum: 0, fencingToken: "" }))
    const place = await failure(stream.append(input(["b"], { matchSeqNum: 7 })))
    assert.ok(place instanceof SeqNumMismatchError)
    assert.equal(place.expectedSeqNum, 1)
    await stream.append(AppendInput.create([AppendRecord.fence("mine")]))
    const fence = await failure(stream.append(input(["b"], { fencingToken: "other" })))
    assert.ok(fence instanceof FencingTokenMismatchError)
    assert.equal(fence.expectedFencingToken, "mine")
    await stream.append(input(["b"], { fencingToken: "mine", matchSeqNum: 2 }))
    await stream.append(AppendInput.create([AppendRecord.trim(2)]))
    const read = { start: { from: { seqNum: 0 } }, ignoreCommandRecords: true }
    for (;;) {
      const { records } = await stream.read(read)
      if (records.length === 1) {
        assert.equal(records[0].body, "b")
        break
      }
      await new Promise((resolve) => setTimeout(resolve, 100))
    }
  },

  async sessions() {
    const stream = await newStream()
    const session = await stream.appendSession()
    const tickets = []
    const bodies = Array.from({ length: 200 }, (_, at) => `${at} ${"x".repeat((at * 37) % 2000)}`)
    for (let at = 0; at < bodies.length; at += 10) {
      tickets.push(await session.submit(input(bodies.slice(at, at + 10))))
    }
    const acks = await Promise.all(tickets.map((ticket) => ticket.ack()))
    assert.deepEqual(acks.map((ack) => ack.start.seqNum), tickets.map((_, at) => at * 10))
    await session.close()
    const found = await allOf(stream, { seqNum: 0 }, { limits: { count: 200 } })
    assert.deepEqual(found.map((record) => record.body), bodies)
    const last = await allOf(stream, { tailOffset: 3 }, { waitSecs: 0 }, "bytes")
    assert.deepEqual(last.map((record) => new TextDecoder().decode(record.body)), bodies.slice(-3))
  },

  async follower() {
    const stream = await newStream()
    const session = await stream.readSession({ start: { from: { seqNum: 0 } } })
    const reading = (async () => {
      const found = []
      for await (const record of session) {
        found.push(record.body)
        if (found.length === 300) return found
      }
      return found
    })()
    const producer = new Producer(
      new BatchTransform({ lingerDurationMillis: 2, maxBatchRecords: 7 }),
      await stream.appendSession(),
    )
    const tickets = []
    for (let at = 0; at < 300; at++) tickets.push(await producer.submit(text(`${at}`)))
    const placed = await Promise.all(tickets.map((ticket) => ticket.ack()))
    assert.deepEqual(placed.map((ack) => ack.seqNum()), placed.map((_, at) => at))
    await producer.close()
    assert.deepEqual(await reading, Array.from({ length: 300 }, (_, at) => `${at}`))
  },

  async encryption() {
    const stream = await newStream({ streamCipher: "aes-256-gcm" }, "secret", { encryptionKey: KEY })
    await stream.append(input(["hidden", "too"]))
    const found = await allOf(stream, { seqNum: 0 }, { waitSecs: 0 })
    assert.deepEqual(found.map((record) => record.body), ["hidden", "too"])
    const bare = s2.basin(basinName).stream("secret", { forceTransport })
    const missing = await failure(bare.read({ start: { from: { seqNum: 0 } } }))
    assert.ok(missing instanceof S2Error)
    assert.equal(missing.code, "bad_header")
  },

  async tokens() {
    const scope = { basins: { prefix: "" }, streams: { prefix: "" }, opGroups: { stream: { read: true } } }
    const id = `token-${basinName}`
    const { accessToken } = await s2.accessTokens.issue({ id, scope })
    assert.ok(accessToken.length > 0)
    const { accessTokens } = await s2.accessTokens.list({ prefix: id })
    assert.deepEqual(accessTokens.map((info) => info.id), [id])
    const held = new S2({ accessToken, endpoints: { account: url, basin: url } })
    assert.equal((await failure(held.basins.list())).code, "permission_denied")
    await s2.accessTokens.revoke({ id })
    assert.ok((await s2.locations.list()).length > 0)
    const now = Math.floor(Date.now() / 1000)
    const metrics = await s2.metrics.account({ set: "active-basins", start: now - 60, end: now })
    assert.ok(Array.isArray(metrics.values))
  },

  // The server is killed while a session appends.  An input whose ack got lost is sent again, so
  // a record may be there twice; each is where its ack says, and none is missing or out of order.
  async killed() {
    const stream = await newStream()
    const session = await stream.appendSession()
    const places = []
    for (let round = 0; round < 3; round++) {
      const tickets = []
      for (let at = 0; at < 20; at++) {
        tickets.push(await session.submit(input([`${round * 20 + at}`])))
        if (at === 10) await fetch(process.env.INTEROP_RESTART_URL, { method: "POST" })
      }
      for (const ticket of tickets) places.push((await ticket.ack()).start.seqNum)
    }
    await session.close()
    const found = (await allOf(stream, { seqNum: 0 }, { waitSecs: 0 })).map((record) => +record.body)
    assert.deepEqual(places.map((place) => found[place]), places.map((_, at) => at))
    let next = 0
    for (const number of found) {
      assert.ok(number <= next)
      next = Math.max(next, number + 1)
    }
    assert.equal(next, places.length)
  },
}

await stories[story]()
console.log("ok")
process.exit(0)
