// The pictures of a tab as files.

import { element, svg } from "/page/dom.js";
import { color } from "/page/paint.js";
import { rect } from "/page/plot.js";

const MOST_PIXELS = 16_000; // of a side: browsers cut larger pictures

// Saves every picture below `panel` as NAME.png, NAME-2.png, …, or as .svg.
export async function savePictures(panel, name, kind) {
  const places = [...panel.querySelectorAll(".picture")];
  if (!places.length) throw new Error("save: this tab shows no picture");
  for (const [i, place] of places.entries()) {
    const { width, height } = place.getBoundingClientRect();
    const text = textOf(place, width, height);
    const blob =
      kind === "svg"
        ? new Blob([text], { type: "image/svg+xml" })
        : await rasterOf(text, width, height);
    const href = URL.createObjectURL(blob);
    element("a", { href, download: `${name}${i ? `-${i + 1}` : ""}.${kind}` }).click();
    setTimeout(() => URL.revokeObjectURL(href), 60_000);
  }
}

// A picture as a document of its own, on paper, without names of colours. What lies under it, as the
// points of a map, comes with it.
function textOf(place, width, height) {
  const made = place.cloneNode(true);
  const below = place.parentElement.querySelector(":scope > canvas");
  if (below) made.prepend(svg("image", { width, height, href: below.toDataURL() }));
  made.prepend(rect(0, 0, "100%", "100%", "var(--paper)"));
  for (const key of ["fill", "stroke"])
    for (const part of made.querySelectorAll(`[${key}^=var]`))
      part.setAttribute(key, color(part.getAttribute(key).slice(4, -1)));
  made.setAttribute("width", width);
  made.setAttribute("height", height);
  return new XMLSerializer().serializeToString(made);
}

async function rasterOf(text, width, height) {
  const scale = Math.min(devicePixelRatio || 1, MOST_PIXELS / Math.max(width, height));
  const image = new Image();
  image.src = `data:image/svg+xml,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = element("canvas", { width: width * scale, height: height * scale });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done));
}
