// The states of a job as a diagram, with the path that this job took.
import { html, names } from "../../lib/html.js";
import { transitions } from "./path.js";

const [WIDTH, HEIGHT] = [96, 34];
const NODES = {
  waiting: [34, 74],
  leased: [196, 74],
  done: [358, 18],
  dead: [358, 74],
  cancelled: [358, 130],
};
const TITLES = { waiting: "Waiting", leased: "Leased", done: "Done", dead: "Dead", cancelled: "Cancelled" };

// Path, the place of its count, and what happens on it.
const EDGES = {
  "start>waiting": ["M12 91H32", null, "enqueued"],
  "waiting>leased": ["M130 84H194", [162, 79], "leased"],
  "leased>waiting": ["M196 98H132", [164, 112], "retried or released"],
  "leased>done": ["M292 84C326 84 322 35 356 35", [324, 54], "completed"],
  "leased>dead": ["M292 91H356", [326, 86], "died"],
  "leased>cancelled": ["M292 98C326 98 322 141 356 141", [330, 124], "cancelled while it ran"],
  "waiting>dead": ["M92 108C92 132 150 128 200 128H300C334 128 330 100 356 100", [200, 123], "died before it ran"],
  "waiting>cancelled": ["M72 108C72 156 110 153 160 153H356", [200, 148], "cancelled before it ran"],
};
// A finished job goes back on top of the diagram.
const again = (state) => {
  const y = NODES[state][1] + HEIGHT / 2;
  return [`M454 ${y}H460Q466 ${y} 466 ${y - 6}V10Q466 4 460 4H88Q82 4 82 10V72`, [274, 16], "retried by hand"];
};
const AGAIN = Object.fromEntries(["done", "dead", "cancelled"].map((state) => [`${state}>waiting`, again(state)]));

export function Diagram({ events, state }) {
  const taken = transitions(events);
  const edges = { ...EDGES, ...Object.fromEntries(Object.entries(AGAIN).filter(([edge]) => taken.has(edge))) };
  const visited = new Set([...taken.keys()].map((edge) => edge.split(">")[1]));
  // What was taken is drawn last, above the others.
  const ordered = Object.entries(edges).sort(([a], [b]) => taken.has(a) - taken.has(b));
  const path = [...taken].map(([edge, times]) => `${edges[edge]?.[2] ?? edge}${times > 1 ? ` ${times} times` : ""}`);
  return html`<svg
    class="diagram"
    viewBox="0 0 476 176"
    role="img"
    aria-label=${`Now ${state}. Path taken: ${path.join(", ")}.`}
  >
    <defs>
      ${["idle", "taken"].map(
        (kind) => html`<marker
          key=${kind}
          id=${`arrow-${kind}`}
          viewBox="0 0 8 8"
          refX="7"
          refY="4"
          markerWidth="7"
          markerHeight="7"
          markerUnits="userSpaceOnUse"
          orient="auto"
        >
          <path class=${`arrow-${kind}`} d="M0 0.5 8 4 0 7.5z" />
        </marker>`,
      )}
    </defs>
    <circle class="diagram-start" cx="8" cy="91" r="4" />
    ${ordered.map(([edge, [d, at, title]]) => {
      const times = taken.get(edge) ?? 0;
      const kind = times > 0 ? "taken" : "idle";
      return html`<g key=${edge} class=${`edge-${kind}`}>
        <title>${title}${times > 1 ? `, ${times} times` : ""}</title>
        <path d=${d} marker-end=${`url(#arrow-${kind})`} />
        ${times > 1 && at && html`<text x=${at[0]} y=${at[1]}>×${times}</text>`}
      </g>`;
    })}
    ${Object.entries(NODES).map(
      ([name, [x, y]]) => html`<g
        key=${name}
        class=${names("node", `node-${name}`, visited.has(name) && "node-visited", name === state && "node-now")}
      >
        <rect x=${x} y=${y} width=${WIDTH} height=${HEIGHT} rx="8" />
        <text x=${x + WIDTH / 2} y=${y + 22}>${TITLES[name]}</text>
      </g>`,
    )}
  </svg>`;
}
