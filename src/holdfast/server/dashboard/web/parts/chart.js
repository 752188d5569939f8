// A line chart of values over time. Charts with the same `group` share one cursor.
import { UNKNOWN, compact, duration, localTime, utcTime } from "../lib/format.js";
import { html, useEffect, useRef, useState } from "../lib/html.js";
import { usePref } from "../lib/prefs.js";
import uPlot from "../vendor/uplot.js";

// Custom properties such as "--ready" as the canvas needs them.
function colourOf(element, name) {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  element.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}

// Hours and minutes; at midnight, and on an axis of days, the day.
const TICKS = [
  [86_400, "{MM}-{DD}", null, null, null, null, null, null, 1],
  [60, "{HH}:{mm}", "\n{MM}-{DD}", null, "\n{MM}-{DD}", null, null, null, 1],
  [1, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 1],
];

// Steps of an axis of durations, in seconds: 1, 2 and 5, and whole parts of minutes, hours and days.
const SECONDS = [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1].flatMap((size) => [size, 2 * size, 5 * size]);
const DURATIONS = [...SECONDS, 10, 30, 60, 120, 300, 600, 1_800, 3_600, 7_200, 21_600, 43_200, 86_400, 172_800, 604_800];

// The width that the longest of these labels needs.
const widthFor = (labels) => Math.max(40, ...labels.map((label) => 14 + 6.8 * label.length));

// Known values between unknown ones, which no line would show; null if there are none.
function alone(plot, at, all) {
  const values = plot.data[at];
  const isUnknown = (i) => values[i] === null || values[i] === undefined;
  const found = all ? [] : values.flatMap((_, i) => (!isUnknown(i) && isUnknown(i - 1) && isUnknown(i + 1) ? [i] : []));
  return found.length > 0 ? found : null;
}

function optionsOf(element, { series, format, group, height, utc, stepped, spanOf, onCursor }) {
  const [muted, line] = [colourOf(element, "--muted"), colourOf(element, "--line")];
  const axis = {
    stroke: muted,
    font: `12px ${getComputedStyle(element).fontFamily}`,
    grid: { stroke: line, width: 1 },
    ticks: { show: false },
  };
  return {
    width: element.clientWidth,
    height,
    padding: [8, 8, 0, 0],
    tzDate: utc ? (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC") : undefined,
    cursor: {
      sync: group ? { key: group } : undefined,
      drag: { x: false, y: false },
      points: { size: 6 },
    },
    legend: { show: false },
    hooks: { setCursor: [({ cursor }) => onCursor(cursor.idx ?? null)] },
    scales: {
      x: { range: (_, least, most) => [Math.min(least, most - spanOf() / 1000), most] },
      y: { range: (_, __, most) => [0, most > 0 ? most * 1.1 : 1] },
    },
    axes: [
      { ...axis, size: 40, space: 64, values: TICKS },
      {
        ...axis,
        size: (_, labels) => widthFor(labels ?? []),
        space: 32,
        incrs: format === duration ? DURATIONS : undefined,
        values: (_, found) => found.map((value) => format(value).replace(".0 ", " ")),
      },
    ],
    series: [
      {},
      ...series.map(({ label, color, fill }) => ({
        label,
        stroke: colourOf(element, color),
        fill: fill ? colourOf(element, color).replace(/^rgb\((.*)\)$/, "rgba($1, 0.12)") : undefined,
        width: 1.5,
        spanGaps: false,
        paths: stepped ? uPlot.paths.stepped({ align: 1 }) : undefined,
        points: { show: (plot) => plot.data[0].length < 3, filter: alone, size: 5 },
      })),
    ],
  };
}

// `times` are milliseconds; `series` is [{label, color: "--ready", values, fill?}] with null for
// unknown values. `title` is the caption, `format` shows a value. The chart covers at least `span`
// milliseconds, so that a short history looks short.
export function Chart({ title, times, series, format = compact, group, height = 180, stepped = false, span = 0 }) {
  const place = useRef(null);
  const plot = useRef(null);
  const [at, setAt] = useState(null);
  const latestSpan = useRef(span);
  latestSpan.current = span;
  const [preference] = usePref("time");
  const [theme] = usePref("theme");
  const utc = preference === "utc";
  const shape = series.map(({ label, color }) => label + color).join();
  const data = [times.map((time) => time / 1000), ...series.map(({ values }) => values)];

  useEffect(() => {
    const element = place.current;
    const draw = () => {
      plot.current?.destroy();
      const options = optionsOf(element, { series, format, group, height, utc, stepped, spanOf: () => latestSpan.current, onCursor: setAt });
      plot.current = new uPlot(options, data, element);
    };
    draw();
    const resized = new ResizeObserver(() => {
      const width = element.clientWidth;
      if (width && width !== plot.current.width) plot.current.setSize({ width, height });
    });
    resized.observe(element);
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    scheme.addEventListener("change", draw);
    return () => {
      resized.disconnect();
      scheme.removeEventListener("change", draw);
      plot.current.destroy();
      plot.current = null;
    };
  }, [shape, group, height, utc, theme, stepped]);
  useEffect(() => plot.current?.setData(data), [times, ...series.map(({ values }) => values)]);

  // The values under the cursor, or the latest ones.
  const shown = at !== null && at < times.length ? at : times.length - 1;
  const valueOf = ({ values }) => {
    const value = values[shown];
    return value === null || value === undefined ? UNKNOWN : format(value);
  };
  const when = at === null ? "latest" : (utc ? utcTime : localTime)(times[shown]);
  const text = series.map((each) => `${each.label} ${valueOf(each)}`).join(", ");
  return html`<figure class="chart">
    <figcaption>${title} <span class="chart-when">${when}</span></figcaption>
    <div ref=${place} class="chart-plot" role="img" aria-label=${`${title}, ${when}: ${text}`}></div>
    <ul class="legend">
      ${series.map(
        (each) => html`<li key=${each.label}>
          <span class=${`dot dot-${each.color.slice(2)}`} />${each.label}
          <span class="legend-value">${valueOf(each)}</span>
        </li>`,
      )}
    </ul>
  </figure>`;
}
