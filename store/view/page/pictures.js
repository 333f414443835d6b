// The pictures of a tab as files: those in one place of the page become one.

import { element } from "/page/dom.js";
import { color } from "/page/paint.js";

// Saves every picture below `panel` as NAME.png, NAME-2.png, …
export async function savePictures(panel, name) {
  const places = new Set([...panel.querySelectorAll("canvas")].map((each) => each.parentElement));
  if (!places.size) throw new Error("save: this tab shows no picture");
  let number = 0;
  for (const place of places) {
    number += 1;
    const blob = await new Promise((done) => joined(place).toBlob(done));
    const href = URL.createObjectURL(blob);
    const download = `${name}${number > 1 ? `-${number}` : ""}.png`;
    element("a", { href, download }).click();
    setTimeout(() => URL.revokeObjectURL(href), 60_000);
  }
}

function joined(place) {
  const parts = [...place.querySelectorAll(":scope > canvas")];
  const boxes = parts.map((part) => part.getBoundingClientRect());
  const least = (key) => Math.min(...boxes.map((box) => box[key]));
  const most = (key) => Math.max(...boxes.map((box) => box[key]));
  const scale = devicePixelRatio || 1;
  const [width, height] = [most("right") - least("left"), most("bottom") - least("top")];
  const canvas = element("canvas", { width: width * scale, height: height * scale });
  const context = canvas.getContext("2d");
  context.fillStyle = color("--paper");
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.scale(scale, scale);
  parts.forEach((part, i) => {
    const box = boxes[i];
    context.drawImage(
      part,
      box.left - least("left"),
      box.top - least("top"),
      box.width,
      box.height,
    );
  });
  return canvas;
}
