// pg-boss: several workers in one process, each taking a batch per call, or its defaults.

import { PgBoss } from "pg-boss";
import { Tally, batches, main, payload, seconds, stamped, steadily } from "./program.mjs";

async function opened(given) {
  const boss = new PgBoss({
    connectionString: given.place,
    useListenNotify: given.settings.notify,
  });
  boss.on("error", (error) => console.error(error));
  await boss.start();
  return boss;
}

await main({
  async prepare(given) {
    const boss = await opened(given);
    for (const name of ["noop", "late"]) {
      await boss.createQueue(name, { notify: given.settings.notify });
    }
  },

  async enqueue(given) {
    const boss = await opened(given);
    const job = { data: { text: payload } };
    return seconds(async () => {
      for (const size of batches(given.jobs)) await boss.insert("noop", Array(size).fill(job));
    });
  },

  async work(given) {
    const tally = new Tally();
    const boss = await opened(given);
    const options = given.settings.work;
    await boss.work("noop", options, async (jobs) => tally.ran(jobs.length));
    await boss.work("late", options, async (jobs) => {
      for (const job of jobs) tally.started(job.data.text);
    });
    await new Promise(() => {});
  },

  async trickle(given) {
    const boss = await opened(given);
    for await (const _ of steadily(given)) await boss.send("late", { text: stamped() });
  },
});
