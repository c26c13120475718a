// pg-boss: insert of many, a worker with batches of a thousand that is notified.
import { PgBoss } from 'pg-boss'
import { DSN, KEYED, body, enqueue, handled, key } from './peerlib.mjs'

const [role, ...numbers] = process.argv.slice(2)
const works = role === 'work'
const boss = new PgBoss({ connectionString: DSN, max: 24, useListenNotify: works, schedule: false, supervise: works })
boss.on('error', (error) => console.error(String(error)))
await boss.start()
if (role === 'setup') await boss.createQueue('q', { notify: true, ...(KEYED ? { policy: 'key_strict_fifo' } : {}) })
else if (works) {
  await boss.work('q', { batchSize: 1000, localConcurrency: 1, pollingIntervalSeconds: 0.5, burstWhenBatchFull: true },
    async (jobs) => { for (const job of jobs) handled(job.data.sent) })
  await new Promise(() => {})
} else {
  const many = (n) => boss.insert('q', Array.from({ length: n }, () => ({ data: body(), singletonKey: key() })))
  await enqueue(() => boss.send('q', body(), { singletonKey: key() }), many, role, ...numbers.map(Number))
}
process.exit()
