// Ticks to come: how far away, local, UTC, and in the schedule's own zone.
import { useNow } from "../../lib/clock.js";
import { localTime, relativeTime, utcTime } from "../../lib/format.js";
import { html } from "../../lib/html.js";

const here = Intl.DateTimeFormat().resolvedOptions().timeZone;
const DAY = new Intl.DateTimeFormat("en", { weekday: "short" });

function zoneFormat(zone) {
  try {
    return new Intl.DateTimeFormat("sv-SE", { timeZone: zone, dateStyle: "short", timeStyle: "medium" });
  } catch {
    return null; // the browser does not know this zone
  }
}

export function Ticks({ ticks, zone }) {
  const at = useNow();
  const other = zone && zone !== "UTC" && zone !== here ? zoneFormat(zone) : null;
  return html`<div class="table-frame ticks">
    <table>
      <caption class="sr-only">The next ticks</caption>
      <thead>
        <tr>
          <th scope="col">Due</th>
          <th scope="col">Here <span class="zero">${here}</span></th>
          ${other && html`<th scope="col" class="from-medium">${zone}</th>`}
          <th scope="col" class="from-medium">UTC</th>
        </tr>
      </thead>
      <tbody>
        ${ticks.map(
          (tick) => html`<tr key=${tick}>
            <th scope="row">${relativeTime(tick, at)}</th>
            <td><span class="zero">${DAY.format(new Date(tick))}</span> ${localTime(tick)}</td>
            ${other && html`<td class="from-medium">${other.format(new Date(tick))}</td>`}
            <td class="from-medium">${utcTime(tick).replace(" UTC", "")}</td>
          </tr>`,
        )}
      </tbody>
    </table>
  </div>`;
}
