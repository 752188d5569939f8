// BullMQ on Redis: the same roles as the Python programs, and its worker, which has no command.

import fs from "node:fs";
import path from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { FlowProducer, Queue, Worker } from "bullmq";
import { Redis } from "ioredis";

const directory = process.env.COMPARE_DIRECTORY;
const connection = () => new Redis(process.env.COMPARE_STORE, { maxRetriesPerRequest: null });
const queue = () => new Queue("compare", { connection: connection() });

function read() {
  const file = path.join(directory, "journal");
  if (!fs.existsSync(file)) return [];
  return fs.readFileSync(file, "utf8").trim().split("\n").map((line) => JSON.parse(line));
}

function write(what, label) {
  const line = { what, label, pid: process.pid, at: Date.now() / 1000 };
  fs.appendFileSync(path.join(directory, "journal"), `${JSON.stringify(line)}\n`);
}

async function step({ label, seconds = 0, fails = 0 }) {
  const earlier = read().filter((line) => line.what === "start" && line.label === label).length;
  write("start", label);
  if (label === "crash") process.kill(process.pid, "SIGKILL");
  if (earlier < fails) throw new Error(`failure ${earlier + 1} of ${label}`);
  if (!earlier || label === "late") await sleep(seconds * 1000);
  write("end", label);
  return `${label}, run ${earlier + 1}`;
}

async function run(job) {
  if (job.name === "count") return fs.appendFileSync(path.join(directory, "count"), ".");
  return step(job.data);
}

async function until(look, ms) {
  for (const end = Date.now() + ms; Date.now() < end; await sleep(50)) {
    const found = await look();
    if (found) return found;
  }
  return null;
}

const roles = {
  // `lease` shortens the lock and the check for lost ones.
  async work({ slots = 4, lease = 0 }) {
    const short = lease ? { lockDuration: lease * 1000, stalledInterval: lease * 1000 } : {};
    const worker = new Worker("compare", run, {
      connection: connection(), concurrency: slots, ...short,
    });
    worker.on("error", (error) => console.error(error.message));
    worker.on("failed", (job, error) => console.error(error.message));
    await new Promise(() => setInterval(() => {}, 1 << 30));
  },
  async enqueue({ jobs, retry = false, pause = 0 }) {
    const backoff = { type: "exponential", delay: 1000, jitter: 0.5 };
    const options = retry ? { attempts: 3, backoff } : {};
    const target = queue();
    await target.waitUntilReady();
    const ids = [];
    for (const job of jobs) {
      await sleep(pause * 1000);
      const label = job.label || String(Date.now() / 1000);
      ids.push((await target.add("step", { ...job, label }, options)).id);
    }
    return ids;
  },
  async many({ jobs }) {
    const target = queue();
    for (let left = jobs; left > 0; left -= 1000) {
      await target.addBulk(Array(Math.min(1000, left)).fill({ name: "count", data: {} }));
    }
  },
  async declare({ limit = 0, rate = 0 }) {
    if (limit) await queue().setGlobalConcurrency(limit);
    if (rate) await queue().setGlobalRateLimit(rate, 1000);
  },
  async result({ id }) {
    const target = queue();
    await until(async () => (await target.getJob(id)).isCompleted(), 5000);
    return (await target.getJob(id)).returnvalue;
  },
  async failed({ seconds = 20 }) {
    const target = queue();
    const found = await until(async () => (await target.getFailed())[0], seconds * 1000);
    return found && { id: found.id, error: found.failedReason };
  },
  async put_back({ id, label }) {
    const job = await queue().getJob(id);
    await job.updateData({ label });
    await job.retry();
    return true;
  },
  async fan_in({ jobs, then }) {
    const children = jobs.map((data) => ({ name: "step", queueName: "compare", data }));
    await new FlowProducer({ connection: connection() }).add({
      name: "step", queueName: "compare", data: { label: then }, children,
    });
  },
  async wrong() {
    try {
      await queue().add("step", { label: "label", seconds: "soon" });
    } catch {
      return true;
    }
    return false;
  },
};

const result = await roles[process.argv[2]](JSON.parse(process.argv[3]));
process.stdout.write(`${JSON.stringify(result ?? null)}\n`, () => process.exit(0));
