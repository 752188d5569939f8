// graphile-worker with its local queue and batched completion, as its performance guide says.

import { Logger, makeWorkerUtils, run } from "graphile-worker";
import { Tally, batches, main, payload, seconds, stamped, steadily } from "./program.mjs";

const logger = new Logger(() => () => {});
const utils = ({ place }) => makeWorkerUtils({ connectionString: place, logger });

await main({
  async prepare(given) {
    await (await utils(given)).migrate();
  },

  async enqueue(given) {
    const queue = await utils(given);
    const job = { identifier: "noop", payload: { text: payload } };
    return seconds(async () => {
      for (const size of batches(given.jobs)) await queue.addJobs(Array(size).fill(job));
    });
  },

  async work(given) {
    const tally = new Tally();
    const runner = await run({
      preset: {
        worker: {
          connectionString: given.place,
          logger,
          crontabFile: "/nonexistent",
          concurrentJobs: given.settings.concurrency,
          maxPoolSize: given.settings.concurrency + 1,
          localQueue: { size: given.settings.local },
          completeJobBatchDelay: 0,
          failJobBatchDelay: 0,
        },
      },
      taskList: {
        noop: () => tally.ran(),
        late: ({ text }) => tally.started(text),
      },
    });
    await runner.promise;
  },

  async trickle(given) {
    const queue = await utils(given);
    for await (const _ of steadily(given)) await queue.addJob("late", { text: stamped() });
  },
});
