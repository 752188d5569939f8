// Schedules: the rule in words, past runs and the next tick; with ?name= one schedule.
import { plural } from "../lib/format.js";
import { html, useState } from "../lib/html.js";
import { useMay } from "../lib/session.js";
import { AsOf, ListBody, useList } from "../parts/listing.js";
import { PageHead } from "../parts/shell.js";
import { Empty } from "../parts/states.js";
import { ScheduleForm } from "./schedules/form.js";
import { Schedule } from "./schedules/schedule.js";
import { Legend } from "./schedules/strip.js";
import { ScheduleTable } from "./schedules/table.js";

export default function Schedules({ query }) {
  const list = useList("v1/schedules", "schedules", (row) => row.name);
  const [adds, setAdds] = useState(false);
  const may = useMay();
  if (query.name) {
    return html`<${Schedule} key=${query.name} name=${query.name} list=${list} />`;
  }
  const add = html`<button class="button button-primary" onClick=${() => setAdds(true)}>Add a schedule</button>`;
  return html`<${PageHead} title="Schedules">
      <${AsOf} list=${list} />
      ${may.act("operate") && add}
    </${PageHead}>
    <${ListBody} list=${list} what="schedules">
      ${list.rows?.length === 0
        ? html`<section class="panel">
            <${Empty} title="No schedules yet" command=${'holdfast schedule add nightly --cron "0 3 * * *" --task report:send'}>
              A schedule enqueues a job at every tick of a rule: a cron rule in a time zone, or an interval.
              ${may.act("operate") ? " Add one above, or on the command line:" : " On the command line:"}
            </${Empty}>
          </section>`
        : html`<section class="panel" aria-labelledby="schedules-title">
            <div class="panel-head">
              <h2 id="schedules-title">${plural(list.rows?.length, "schedule")}</h2>
              <${Legend} />
            </div>
            <${ScheduleTable} rows=${list.rows ?? []} />
          </section>`}
      ${adds && html`<${ScheduleForm} onClose=${() => setAdds(false)} />`}
    </${ListBody}>`;
}
