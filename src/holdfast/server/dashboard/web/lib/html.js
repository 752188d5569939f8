// Preact, its hooks and htm, bound once: every other module imports them from here.
import { Component, Fragment, createContext, h, render } from "../vendor/preact.js";
import htm from "../vendor/htm.js";

export * from "../vendor/preact-hooks.js";
export { Component, Fragment, createContext, render };

// htm would keep elements without values to use them again, and each of them the whole page that it
// was last part of. Marked as changing, they are made anew.
const CHANGING = 3;

export const html = htm.bind(function create(...parts) {
  this[0] = CHANGING;
  return h(...parts);
});

// The component, rendered again only if one of its properties changed.
export function memo(Inner) {
  return class Memo extends Component {
    shouldComponentUpdate(next) {
      const before = this.props;
      const names = Object.keys(next);
      if (names.length !== Object.keys(before).length) return true;
      return names.some((name) => !Object.is(before[name], next[name]));
    }

    render(properties) {
      return html`<${Inner} ...${properties} />`;
    }
  };
}

// Joins class names; falsy ones are left out.
export const names = (...all) => all.filter(Boolean).join(" ");
