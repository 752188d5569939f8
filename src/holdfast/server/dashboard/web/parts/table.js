// A table that can be sorted, walked with j and k, and selected with x.
//
// Live values do not make rows jump: the order holds until the user sorts, or asks for it when
// the values have changed it. A row is rendered again only if its object changed.
import { html, memo, names, useRef, useState } from "../lib/html.js";
import { useKey } from "../lib/keyboard.js";

// The value by which a column sorts; unknown ones come last in both directions.
const compare = (a, b, sign) => {
  const [noA, noB] = [a === null || a === undefined, b === null || b === undefined];
  if (noA || noB) return Number(noA) - Number(noB);
  if (typeof a === "string") return sign * a.localeCompare(b, "en", { numeric: true });
  return sign * (Number(a) - Number(b));
};

function sorted(rows, columns, { by, sign }) {
  const column = columns.find((each) => each.key === by);
  if (!column?.sort) return rows;
  return [...rows].sort((a, b) => compare(column.sort(a), column.sort(b), sign));
}

// The rows in the held order, and whether sorting now would change it.
function useHeldOrder(rows, columns, order, keyOf) {
  const held = useRef({ order: null, places: new Map() });
  const fresh = sorted(rows, columns, order);
  const isSorted = columns.some(({ key, sort }) => key === order.by && sort);
  const hold = () => {
    held.current = { order, places: new Map(fresh.map((row, place) => [keyOf(row), place])) };
  };
  if (held.current.order !== order || !isSorted) hold(); // rows without an order are as given
  // The first column names the row and does not change: new rows appear in their place.
  if (order.by === columns[0].key) return { shown: fresh, moved: false, hold };
  const { places } = held.current;
  const placeOf = (row) => places.get(keyOf(row)) ?? Infinity;
  const shown = [...fresh].sort((a, b) => placeOf(a) - placeOf(b) || 0);
  return { shown, moved: shown.some((row, i) => row !== fresh[i]), hold };
}

// `columns`, the same object at each render, is [{key, title, cell(row), sort?(row), number?, from?,
// help?}]: `number` aligns right, and `from` is the narrowest screen that shows the column: "medium",
// "wide" or "widest". The first column is the head of the row; Enter follows its link. `order` is
// [column, "asc" | "desc"]. `selection` is {chosen: Set of keys, onChange(Set)}. `groups` is
// [{key, rows, head?, open?}] and the table is then sorted within each group. A table whose columns
// may not fit `scrolls` in its own frame.
export function Table({ caption, columns, rows, keyOf, order: first, selection, groups, scrolls, empty }) {
  const [order, setOrder] = useState(() => ({
    by: first?.[0] ?? columns[0].key,
    sign: first?.[1] === "desc" ? -1 : 1,
  }));
  const body = useRef(null);
  const all = groups ? groups.flatMap((group) => group.rows) : rows;
  const { shown, moved, hold } = useHeldOrder(all, columns, order, keyOf);
  const [, redraw] = useState(0);
  useTableKeys(body, selection, all.length > 0);
  const choose = useStable((key) => {
    const next = new Set(selection.chosen);
    if (!next.delete(key)) next.add(key);
    selection.onChange(next);
  });
  if (all.length === 0 && empty) return empty;

  const sort = ({ key, number }) => {
    const again = order.by === key;
    setOrder({ by: key, sign: again ? -order.sign : number ? -1 : 1 });
  };
  const inOrder = (some) => {
    const wanted = new Set(some);
    return shown.filter((each) => wanted.has(each));
  };
  const row = (each) => html`<${Row}
    key=${keyOf(each)}
    id=${keyOf(each)}
    row=${each}
    columns=${columns}
    chosen=${selection?.chosen.has(keyOf(each)) ?? null}
    onChoose=${selection ? choose : null}
  />`;
  const isAll = selection && all.length > 0 && all.every((each) => selection.chosen.has(keyOf(each)));
  const chooseAll = () => selection.onChange(new Set(isAll ? [] : all.map(keyOf)));

  return html`<div class=${scrolls ? "table-frame table-scrolls" : "table-frame"} ref=${body}>
    <table>
      <caption class="sr-only">${caption}</caption>
      <thead>
        <tr>
          ${selection &&
          html`<th scope="col" class="choice">
            <input type="checkbox" aria-label="Select all rows" checked=${isAll} onChange=${chooseAll} />
          </th>`}
          ${columns.map((column) => html`<${Head} key=${column.key} column=${column} order=${order} onSort=${sort} />`)}
        </tr>
      </thead>
      ${groups
        ? groups.map((group) => html`<tbody key=${group.key}>
            ${group.head && html`<tr class="group"><th scope="rowgroup" colspan=${columns.length + (selection ? 1 : 0)}>${group.head}</th></tr>`}
            ${group.open !== false && inOrder(group.rows).map(row)}
          </tbody>`)
        : html`<tbody>${shown.map(row)}</tbody>`}
    </table>
    ${moved &&
    html`<button
      class="button resort"
      onClick=${() => {
        hold();
        redraw((times) => times + 1);
      }}
    >Values changed: sort again</button>`}
  </div>`;
}

// A function that stays the same object and calls the latest version.
function useStable(act) {
  const latest = useRef(act);
  latest.current = act;
  const stable = useRef((...values) => latest.current(...values));
  return stable.current;
}

function Head({ column, order, onSort }) {
  const { key, title, number, from, help, sort } = column;
  const isBy = order.by === key;
  const direction = order.sign > 0 ? "ascending" : "descending";
  return html`<th
    scope="col"
    class=${names(number && "number", from && `from-${from}`)}
    aria-sort=${isBy && sort ? direction : undefined}
    title=${help}
  >
    ${sort
      ? html`<button class="sort" onClick=${() => onSort(column)}>
          ${title}<span class="sort-mark" aria-hidden="true">${isBy ? (order.sign > 0 ? "↑" : "↓") : ""}</span>
        </button>`
      : title}
  </th>`;
}

const Row = memo(({ id, row, columns, chosen, onChoose }) => {
  const cells = columns.map(({ key, cell, number, from }, i) => {
    const style = names(number && "number", from && `from-${from}`);
    return i === 0
      ? html`<th key=${key} scope="row" class=${style}>${cell(row)}</th>`
      : html`<td key=${key} class=${style}>${cell(row)}</td>`;
  });
  const pressed = (event) => {
    if (event.key !== "Enter" || event.target !== event.currentTarget) return;
    event.currentTarget.querySelector("a[href]")?.click();
  };
  return html`<tr tabindex="-1" data-key=${id} class=${chosen ? "chosen" : ""} onKeyDown=${pressed}>
    ${onChoose &&
    html`<td class="choice">
      <input type="checkbox" aria-label=${`Select ${id}`} checked=${chosen} onChange=${() => onChoose(id)} />
    </td>`}
    ${cells}
  </tr>`;
});

// j and k move the focus from row to row, x selects; Enter follows the first link of the row.
function useTableKeys(body, selection, enabled) {
  const rows = () => [...body.current.querySelectorAll("tbody tr[data-key]")];
  const current = () => document.activeElement?.closest("tr[data-key]");
  const move = (step) => {
    const found = rows();
    const at = found.indexOf(current());
    const next = at < 0 ? (step > 0 ? 0 : found.length - 1) : at + step;
    found[Math.min(Math.max(next, 0), found.length - 1)]?.focus();
  };
  useKey("j", "Next row", () => move(1), { enabled });
  useKey("k", "Previous row", () => move(-1), { enabled });
  useKey("x", "Select the row", () => current()?.querySelector("input[type=checkbox]")?.click(), {
    enabled: enabled && Boolean(selection),
  });
}
