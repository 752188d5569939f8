// The jobs around a job: those it depends on, and those that depend on it, in bounded requests.
import { get, v1 } from "../../lib/api.js";
import { queueToName } from "../../lib/session.js";

const JOBS_MAX = 200;
const UP_LEVELS = 2;
const DOWN_LEVELS = 3;
const EXPANDED_MAX = 12; // jobs of one level that are asked for their relatives
const AT_ONCE = 4;

async function inTurns(list, act) {
  const found = [];
  for (let i = 0; i < list.length; i += AT_ONCE) {
    found.push(...(await Promise.all(list.slice(i, i + AT_ONCE).map(act))));
  }
  return found;
}

// {nodes: Map id → {id, level, row}, edges: Set "parent child", more}. `row` is null if the job is
// unknown: deleted, or not visible. `more`: there may be jobs that are not shown.
export async function readRelatives(job, signal) {
  const graph = { nodes: new Map([[job.id, { id: job.id, level: 0, row: job }]]), edges: new Map(), more: false };
  await addParents(graph, job, signal);
  await addChildren(graph, job, signal);
  return graph;
}

const edge = (graph, parent, child) => graph.edges.set(`${parent} ${child}`, [parent, child]);

function room(graph, ids) {
  const free = JOBS_MAX - graph.nodes.size;
  if (ids.length > free) graph.more = true;
  return ids.slice(0, Math.max(0, free));
}

async function addParents(graph, job, signal) {
  let children = [{ id: job.id, after: job.after ?? [] }];
  for (let level = 1; level <= UP_LEVELS && children.length > 0; level += 1) {
    const wanted = [...new Set(children.flatMap(({ after }) => after))];
    const ids = room(graph, wanted.filter((id) => !graph.nodes.has(id)));
    const rows = new Map((await rowsOf(ids, signal)).map((row) => [row.id, row]));
    for (const id of ids) graph.nodes.set(id, { id, level: -level, row: rows.get(id) ?? null });
    for (const { id, after } of children) {
      for (const parent of after) if (graph.nodes.has(parent)) edge(graph, parent, id);
    }
    const known = ids.filter((id) => rows.has(id));
    if (known.length > EXPANDED_MAX && level < UP_LEVELS) graph.more = true;
    const expanded = level < UP_LEVELS ? known.slice(0, EXPANDED_MAX) : [];
    const full = await inTurns(expanded, (id) => get(v1`jobs/${id}`, {}, { signal }).catch(() => null));
    children = full.filter((each) => each?.after?.length > 0);
  }
}

async function rowsOf(ids, signal) {
  if (ids.length === 0) return [];
  return (await get("v1/jobs", { id: ids, view: "row", limit: ids.length }, { signal })).rows;
}

async function addChildren(graph, job, signal) {
  let parents = [job.id];
  for (let level = 1; level <= DOWN_LEVELS && parents.length > 0; level += 1) {
    if (parents.length > EXPANDED_MAX) graph.more = true;
    const pages = await inTurns(parents.slice(0, EXPANDED_MAX), (parent) =>
      get("v1/jobs", { parent, view: "row", limit: JOBS_MAX, ...queueToName(job.queue) }, { signal }).then((page) => ({ parent, ...page })),
    );
    const next = [];
    for (const { parent, rows, after } of pages) {
      if (after !== null) graph.more = true;
      for (const row of [...rows].reverse()) {
        if (!graph.nodes.has(row.id)) {
          if (room(graph, [row.id]).length === 0) break;
          graph.nodes.set(row.id, { id: row.id, level, row });
          next.push(row.id);
        }
        edge(graph, parent, row.id);
      }
    }
    parents = next;
  }
}
