// Parents and children of a job as a graph: what it depends on is left of it.
import { count, visible } from "../../lib/format.js";
import { html, names, useEffect, useMemo, useRef, useState } from "../../lib/html.js";
import { useResource } from "../../lib/resource.js";
import { go, href, to } from "../../lib/router.js";
import { Failure } from "../../parts/states.js";
import { stateOf } from "../jobs/columns.js";
import { isFinished } from "./data.js";
import { readRelatives } from "./relatives.js";

const [WIDTH, HEIGHT] = [168, 38];
const [STEP_X, STEP_Y] = [224, 48];
const MARGIN = 8;
const TEXT_MAX = 22;
const EVERY_MS = 10_000;

const cut = (text) => visible(text.length > TEXT_MAX ? `${text.slice(0, TEXT_MAX - 1)}…` : text);

// A place for every job: one column per level, each centred.
function layout({ nodes, edges }) {
  const levels = Map.groupBy([...nodes.values()], ({ level }) => level);
  const first = Math.min(...levels.keys());
  const rows = Math.max(...[...levels.values()].map((some) => some.length));
  const places = new Map();
  for (const [level, some] of levels) {
    const top = MARGIN + ((rows - some.length) * STEP_Y) / 2;
    some.forEach((node, i) => places.set(node.id, [MARGIN + (level - first) * STEP_X, top + i * STEP_Y]));
  }
  const lines = [...edges.values()].map(([parent, child]) => {
    const [x1, y1] = places.get(parent);
    const [x2, y2] = places.get(child);
    const [from, till] = [x1 + WIDTH, y1 + HEIGHT / 2];
    const half = Math.max(24, (x2 - from) / 2);
    return `M${from} ${till}C${from + half} ${till} ${x2 - half} ${y2 + HEIGHT / 2} ${x2 - 6} ${y2 + HEIGHT / 2}`;
  });
  const columns = Math.max(...levels.keys()) - first + 1;
  return {
    places,
    lines,
    width: MARGIN * 2 + (columns - 1) * STEP_X + WIDTH,
    height: MARGIN * 2 + (rows - 1) * STEP_Y + HEIGHT,
  };
}

export function Family({ job }) {
  const [every, setEvery] = useState(EVERY_MS);
  const { data: graph, error, reload } = useResource((signal) => readRelatives(job, signal), [job.id], { every });
  const drawn = useMemo(() => graph && layout(graph), [graph]);
  const frame = useRef(null);
  // The job itself is in the middle at first.
  const isDrawn = Boolean(graph && graph.nodes.size > 1);
  useEffect(() => {
    if (!isDrawn) return;
    const [x, y] = drawn.places.get(job.id);
    frame.current.scrollTo(x + (WIDTH - frame.current.clientWidth) / 2, y - frame.current.clientHeight / 2);
  }, [isDrawn]);
  // The graph changes while one of its jobs is unfinished; this job's own changes show at once.
  const open = !graph || [...graph.nodes.values()].some(({ row }) => row && !isFinished(row));
  useEffect(() => setEvery(open ? EVERY_MS : 0), [open]);
  const state = useRef(job.state);
  useEffect(() => {
    if (state.current !== job.state) reload();
    state.current = job.state;
  }, [job.state]);
  if (error && !graph) return html`<${Failure} error=${error} retry=${reload} />`;
  if (!isDrawn) return null;
  const nodes = [...graph.nodes.values()];
  const parents = nodes.filter(({ level }) => level < 0).length;
  const children = nodes.filter(({ level }) => level > 0).length;
  const around = [parents && `${count(parents)} before it`, children && `${count(children)} after it`];
  const { places, lines, width, height } = drawn;
  return html`<section class="panel" aria-labelledby="family-title">
    <div class="panel-head">
      <h2 id="family-title">Parents and children <span class="hint">${around.filter(Boolean).join(", ")}</span></h2>
      ${graph.more &&
      html`<span class="hint">There may be more: open a job at the edge to go on from there.</span>`}
    </div>
    <div class="family" ref=${frame} tabindex="0" role="region" aria-label="Graph of parents and children">
      <svg width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`}>
        <defs>
          <marker
            id="arrow-family"
            viewBox="0 0 8 8"
            refX="2"
            refY="4"
            markerWidth="7"
            markerHeight="7"
            markerUnits="userSpaceOnUse"
            orient="auto"
          >
            <path class="arrow-idle" d="M0 0.5 8 4 0 7.5z" />
          </marker>
        </defs>
        ${lines.map((d, i) => html`<path key=${i} class="family-line" d=${d} marker-end="url(#arrow-family)" />`)}
        ${nodes.map((node) => html`<${Node}
          key=${node.id}
          node=${node}
          place=${places.get(node.id)}
          isSelf=${node.id === job.id}
        />`)}
      </svg>
    </div>
  </section>`;
}

function Node({ node: { id, row }, place: [x, y], isSelf }) {
  const state = row ? stateOf(row) : "unknown";
  const about = row ? `${visible(row.task.slice(0, 100))}, ${state}` : "deleted, or not visible";
  const text = html`<title>${visible(id.slice(0, 200))}: ${about}</title>
    <rect x=${x} y=${y} width=${WIDTH} height=${HEIGHT} rx="6" />
    <circle class=${`fill-${state}`} cx=${x + 14} cy=${y + HEIGHT / 2} r="4" />
    <text x=${x + 26} y=${y + 16}>${cut(row ? row.task : id)}</text>
    <text class="family-note" x=${x + 26} y=${y + 30}>${row ? `${state} · ${visible(id.slice(-12))}` : "unknown"}</text>`;
  const style = names("family-node", isSelf && "family-self", !row && "family-unknown");
  if (isSelf || !row) return html`<g class=${style}>${text}</g>`;
  const follow = (event) => {
    event.preventDefault();
    go(to`/jobs/${id}`);
  };
  return html`<a class=${style} href=${href(to`/jobs/${id}`)} onClick=${follow}>${text}</a>`;
}
