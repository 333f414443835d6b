// The focus of the keyboard stays where it was when a part of the page is drawn again.

const CAN = "a[href], button, input, select, [tabindex='0']";
const nameOf = (each) => `${each.tagName} ${each.getAttribute("aria-label") ?? each.textContent}`;

// Draw `place` again; what had the focus is found by its name, else by its number.
export async function keepFocus(place, draw) {
  const held = document.activeElement;
  const before = [...place.querySelectorAll(CAN)];
  const at = before.indexOf(held);
  const name = at < 0 ? "" : nameOf(held);
  await draw();
  if (at < 0 || document.contains(held) || document.activeElement !== document.body) return;
  const after = [...place.querySelectorAll(CAN)];
  (after.find((each) => nameOf(each) === name) ?? after[Math.min(at, after.length - 1)])?.focus({
    preventScroll: true,
  });
}
