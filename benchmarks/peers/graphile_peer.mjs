// graphile-worker: addJobs in bulk, a worker with its local queue of five hundred and batched completion.
import { Logger, makeWorkerUtils, run } from 'graphile-worker'
import pg from 'pg'
import { DSN, body, enqueue, handled, key } from './peerlib.mjs'

const [role, ...numbers] = process.argv.slice(2)
const logger = new Logger(() => () => {})
const pgPool = new pg.Pool({ connectionString: DSN, max: 26 })
if (role === 'work') {
  await run({
    pgPool,
    logger,
    taskList: { noop: async (payload) => handled(payload.sent) },
    preset: { worker: { concurrentJobs: 24, maxPoolSize: 26, localQueue: { size: 500 }, completeJobBatchDelay: 0 } },
  })
  await new Promise(() => {})
}
const utils = await makeWorkerUtils({ pgPool, logger })
if (role === 'setup') await utils.migrate()
else {
  const many = (n) => utils.addJobs(Array.from({ length: n }, () => ({ identifier: 'noop', payload: body(), queueName: key() })))
  await enqueue(() => utils.addJob('noop', body(), { queueName: key() }), many, role, ...numbers.map(Number))
}
process.exit()
