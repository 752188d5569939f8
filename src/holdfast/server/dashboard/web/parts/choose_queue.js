// For a caller whose token is for some queues only: the server lists the jobs of one at a time.
import { get } from "../lib/api.js";
import { html } from "../lib/html.js";
import { useResource } from "../lib/resource.js";
import { href, useTitle } from "../lib/router.js";
import { useSession } from "../lib/session.js";
import { PageHead } from "./shell.js";
import { Empty, Failure, Loading } from "./states.js";

// The page, or before it the choice of a queue, which its query then has.
export const withQueue = (Page, title, path) =>
  function PageOfQueue({ query, ...more }) {
    const { prefix } = useSession().view;
    return prefix && !query.queue
      ? html`<${ChooseQueue} title=${title} path=${path} query=${query} prefix=${prefix} />`
      : html`<${Page} query=${query} ...${more} />`;
  };

function ChooseQueue({ title, path, query, prefix }) {
  useTitle(title);
  const { data, error, reload } = useResource((signal) => get("v1/queues", {}, { signal }), []);
  const names = (data?.queues ?? []).map(({ name }) => name);
  return html`<${PageHead} title=${title} />
    ${error && html`<${Failure} error=${error} retry=${reload} />`}
    ${!error && !data && html`<${Loading} what="queues" />`}
    ${data &&
    html`<section class="panel">
      <${Empty} title="Choose a queue">
        Your token is for the queues that begin with <code>${prefix}</code>: one of them is shown at a time.
        <span class="empty-act actions">
          ${names.map((name) => html`<a key=${name} class="button" href=${href(path, { ...query, queue: name })}>${name}</a>`)}
        </span>
      </${Empty}>
    </section>`}`;
}
