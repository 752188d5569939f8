// How many died in each of twelve equal times up to now.
import { count, duration } from "../../lib/format.js";
import { html, memo } from "../../lib/html.js";

const [WIDTH, HEIGHT, GAP] = [96, 24, 2];

export const Trend = memo(({ values, bucketMs }) => {
  const most = Math.max(...values, 1);
  const width = WIDTH / Math.max(values.length, 1);
  const text = `Died in each ${duration(bucketMs / 1000)}, oldest first: ${values.map((each) => count(each)).join(", ")}`;
  return html`<svg class="trend" viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label=${text}>
    <title>${text}</title>
    ${values.map((value, i) => {
      const height = value === 0 ? 1 : Math.max(3, (value / most) * HEIGHT);
      return html`<rect
        key=${i}
        class=${value === 0 ? "trend-none" : ""}
        x=${(i * width).toFixed(1)}
        y=${(HEIGHT - height).toFixed(1)}
        width=${(width - GAP).toFixed(1)}
        height=${height.toFixed(1)}
        rx="1"
      />`;
    })}
  </svg>`;
});
