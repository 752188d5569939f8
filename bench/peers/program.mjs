// Shared code of the Node peers: the same roles, clock and counters as in program.py.

import fs from "node:fs";
import path from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

const BATCH = 1000;
const PAYLOAD_BYTES = 256;
// Largest delay of a counter write: a write per job would cost more than the job.
const TALLY_MS = 2;

export const payload = "x".repeat(PAYLOAD_BYTES);

export function stamped() {
  return String(process.hrtime.bigint()).padStart(20, "0").padEnd(PAYLOAD_BYTES, "x");
}

export function* batches(jobs) {
  for (; jobs > 0; jobs -= BATCH) yield Math.min(jobs, BATCH);
}

let trickleBegan;

export async function* steadily({ jobs, rate = 100 }) {
  trickleBegan = process.cpuUsage();
  const start = performance.now();
  const turn = 1000 / rate;
  for (let number = 0; number < jobs; number++) {
    await sleep(Math.max(start + (number + Math.random()) * turn - performance.now(), 0));
    yield;
  }
}

export async function seconds(act) {
  const started = performance.now();
  await act();
  return (performance.now() - started) / 1000;
}

export class Tally {
  constructor() {
    const base = path.join(process.env.HOLDFAST_BENCH_TALLY, String(process.pid));
    this.file = fs.openSync(`${base}.tally`, "w");
    this.delays = fs.openSync(`${base}.delays`, "a");
    this.cells = new BigInt64Array(2);
    this.count = 0;
    this.timer = null;
  }

  ran(jobs = 1) {
    if (this.count === 0) this.cells[0] = process.hrtime.bigint();
    this.count += jobs;
    this.timer ??= setTimeout(() => this.write(), TALLY_MS);
  }

  write() {
    this.timer = null;
    this.cells[1] = BigInt(this.count);
    fs.writeSync(this.file, new Uint8Array(this.cells.buffer), 0, 16, 0);
  }

  started(stamp) {
    fs.writeSync(this.delays, `${process.hrtime.bigint() - BigInt(stamp.slice(0, 20))}\n`);
  }
}

export async function main(roles) {
  // The pipe also closes if the benchmark is killed.
  process.stdin.on("end", () => process.exit(1)).resume();
  let result = await roles[process.argv[2]](JSON.parse(process.argv[3]));
  if (process.argv[2] === "trickle") {
    const used = process.cpuUsage(trickleBegan);
    result = (used.user + used.system) / 1e6;
  }
  process.stdout.write(`${JSON.stringify(result ?? null)}\n`, () => process.exit(0));
}
