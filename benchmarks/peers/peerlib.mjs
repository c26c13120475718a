// What the drivers of peers in JavaScript share; the roles are those of peerlib.py.
import fs from 'node:fs'

export const DSN = process.env.PEER_DSN
const PAD = 'x'.repeat(150)
const BATCH = 1000
const PING_GAP_MS = 20

const KEYS = Number(process.env.PEER_KEYS ?? 0)
let number = 0
// The key of the next job; undefined, if they have none.
export const key = () => (KEYS ? `k${number++ % KEYS}` : undefined)
export const KEYED = KEYS > 0

export const now = () => Number(process.hrtime.bigint()) / 1e9
export const body = () => ({ sent: now(), pad: PAD })

let out
export function handled(sent) {
  out ??= fs.openSync(process.env.PEER_OUT, 'a')
  fs.writeSync(out, `${sent.toFixed(6)} ${now().toFixed(6)}\n`)
}

// Play an enqueuing role, after one job to warm up. `one()` enqueues a job, `many(n)` so many in one call.
export async function enqueue(one, many, role, count, callers) {
  if (role === 'ping') {
    for (let i = 0; i < count; i++) {
      await new Promise((done) => setTimeout(done, PING_GAP_MS))
      await one()
    }
    return
  }
  await one()
  const began = now()
  if (role === 'one') for (let i = 0; i < count; i++) await one()
  else if (role === 'at_once') {
    let left = count
    const caller = async () => { while (left-- > 0) await one() }
    await Promise.all(Array.from({ length: callers }, caller))
  } else if (role === 'bulk') for (let i = 0; i < count; i += BATCH) await many(BATCH)
  else throw new Error(`unknown role: ${role}`)
  console.log(now() - began)
}
