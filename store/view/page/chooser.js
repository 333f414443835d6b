// The box below the head of the page: which columns are shown, or how often a column has which values.

import { $, button, checkbox, element, showTip } from "/page/dom.js";
import { keepFocus } from "/page/focus.js";
import { change, state } from "/page/state.js";

let shown = null; // what fills the box, and the name of what opened it

// Shows what `draw` finds, and has the focus; draws it again with every `redrawChooser`.
export async function openChooser(draw, from) {
  shown = { draw, opener: from.getAttribute("aria-label") };
  await redrawChooser();
  $("#chooser").querySelector("input, .picture, button").focus();
}

export async function redrawChooser() {
  const mine = shown;
  if (!mine) return;
  const parts = await mine.draw();
  if (mine !== shown || parts[0] === $("#chooser").firstChild) return;
  const close = button("close", closeChooser);
  keepFocus($("#chooser"), () => $("#chooser").replaceChildren(...parts, close));
  $("#chooser").hidden = false;
}

export function hideChooser() {
  $("#chooser").hidden = true;
  shown = null;
  showTip("");
}

// What opened it has the focus again.
export function closeChooser() {
  const name = shown?.opener;
  hideChooser();
  const buttons = [$("#choose"), ...$("#head").querySelectorAll("button")];
  buttons.find((each) => each.getAttribute("aria-label") === name)?.focus();
}

// Names of columns, each with a box that shows it, and a button that keeps it at the left.
export function columnChoice(names, isShown) {
  const pins = state.pin.split(",").filter(Boolean);
  const choose = () => {
    const boxes = [...$("#chooser").querySelectorAll("input")];
    change({ columns: names.filter((_, i) => boxes[i].checked).join(",") });
    redrawChooser(); // without any, those of the start are shown
  };
  const pin = (name) => {
    const others = pins.filter((each) => each !== name);
    change({ pin: (others.length < pins.length ? others : [...pins, name]).join(",") });
    redrawChooser();
  };
  return names.map((name) => {
    const looks = { "aria-pressed": pins.includes(name), "aria-label": `pin ${name}` };
    const title = "keep it at the left";
    const pinned = button("⇤", () => pin(name), { className: "pin", title, ...looks });
    return element("span", checkbox(name, isShown(name), choose), pinned);
  });
}
