// Line icons of 16 × 16, drawn in the colour of the text.
import { html } from "../lib/html.js";

const PATHS = {
  overview: "M2.5 8.5h3v5h-3zM6.5 2.5h3v11h-3zM10.5 5.5h3v8h-3z",
  jobs: "M2.5 4h11M2.5 8h11M2.5 12h7",
  dead: "M8 2.5 14 13H2zM8 6.5v3M8 11.2v.1",
  workers: "M3 3.5h10v4H3zM3 8.5h10v4H3zM5.5 5.5h.1M5.5 10.5h.1",
  schedules: "M8 2.5a5.5 5.5 0 1 1 0 11 5.5 5.5 0 0 1 0-11zM8 5v3.2l2.2 1.3",
  breakers: "M2 8h3.5M10.5 8H14M5.5 8l4.5-3.5",
  gates: "M3 3v10M13 3v10M5.5 8h5M8.5 6l2 2-2 2",
  audit: "M4 2.5h8v11H4zM6 5.5h4M6 8h4M6 10.5h2",
  settings: "M2.5 5h6M11.5 5h2M2.5 11h2M7.5 11h6M8.5 3.5v3h3v-3zM4.5 9.5v3h3v-3z",
  tokens: "M5.5 8.5a2.5 2.5 0 1 1 0-.1zM5.5 8h8v2.5M11 8v2",
  quotas: "M2.5 12a5.5 5.5 0 1 1 11 0M8 12l2.5-4",
  search: "M7 3a4 4 0 1 1 0 8 4 4 0 0 1 0-8zM10 10l3.5 3.5",
  close: "M4 4l8 8M12 4l-8 8",
  menu: "M2.5 4.5h11M2.5 8h11M2.5 11.5h11",
  copy: "M5.5 5.5h7v8h-7zM10 5V2.5H3.5V10H5",
  check: "M3 8.5 6.5 12 13 4.5",
  warn: "M8 2.5 14 13H2zM8 6.5v3M8 11.2v.1",
  critical: "M5.3 2.5h5.4l2.8 2.8v5.4l-2.8 2.8H5.3l-2.8-2.8V5.3zM8 5v3.5M8 10.7v.1",
  info: "M8 2.5a5.5 5.5 0 1 1 0 11 5.5 5.5 0 0 1 0-11zM8 7.5V11M8 5v.1",
  pause: "M5.5 3.5v9M10.5 3.5v9",
  play: "M5 3.5v9l7-4.5z",
  right: "M6 3.5 10.5 8 6 12.5",
  down: "M3.5 6 8 10.5 12.5 6",
  more: "M3.5 8h.1M8 8h.1M12.5 8h.1",
  sun: "M8 5.5a2.5 2.5 0 1 1 0 5 2.5 2.5 0 0 1 0-5zM8 1.5v1.2M8 13.3v1.2M1.5 8h1.2M13.3 8h1.2M3.4 3.4l.9.9M11.7 11.7l.9.9M3.4 12.6l.9-.9M11.7 4.3l.9-.9",
};

export function Icon({ name }) {
  return html`<svg class=${`icon icon-${name}`} viewBox="0 0 16 16" aria-hidden="true">
    <path d=${PATHS[name]} />
  </svg>`;
}

// The mark of Holdfast, which is also the icon of the tab.
const MARK = new URL("../icon.svg", import.meta.url).href;

export const Mark = ({ size }) => html`<img src=${MARK} alt="" width=${size} height=${size} />`;
