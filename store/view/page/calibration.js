// Whether scores are probabilities: how often those of about one score are hallucinations.

import { countText, numberText, soft, title } from "/page/dom.js";
import { explore } from "/page/explore.js";
import { between, conditions, show } from "/page/narrow.js";
import { canvasOf, color, outline, SMALL } from "/page/paint.js";
import { state } from "/page/state.js";

const SIZE = 220;
const EDGE = 38;
const LABELLED = "(label == 0 or label == 1)"; // only rows with a label are counted

export function calibrationParts(found, score, labels) {
  if (!found)
    return [
      title("calibration"),
      soft(`${score} is no probability: not all of it lies from 0 to 1`),
    ];
  const { scores, shares, counts, edges } = found;
  const place = (x, y) => [EDGE + x * SIZE, SIZE + 8 - y * SIZE];
  const places = scores.map((each, i) => place(each, shares[i]));
  const [canvas, context] = canvasOf(SIZE + EDGE + 10, SIZE + 30);
  context.fillStyle = color("--band");
  context.fillRect(EDGE, 8, SIZE, SIZE);
  outline(context, [place(0, 0), place(1, 1)], { stroke: "--soft", dash: [4, 4] });
  outline(context, places, { stroke: "--mark" });
  context.fillStyle = color("--mark");
  const most = Math.max(...counts);
  for (const [i, [x, y]] of places.entries()) {
    context.beginPath();
    context.arc(x, y, 2 + 5 * Math.sqrt(counts[i] / most), 0, 2 * Math.PI);
    context.fill();
  }
  context.fillStyle = color("--soft");
  context.font = SMALL;
  for (const tick of [0, 0.5, 1]) {
    const [x, y] = place(tick, tick);
    context.textAlign = "center";
    context.fillText(tick, Math.min(x, SIZE + EDGE - 2), SIZE + 22);
    context.textAlign = "right";
    context.fillText(`${100 * tick}%`, EDGE - 3, y + 4);
  }
  const nearest = (at) => {
    const far = places.map(([x]) => Math.abs(x - at));
    return far.indexOf(Math.min(...far));
  };
  explore(canvas, {
    nx: places.length,
    label: `calibration of ${score}; arrow keys walk, Enter shows the rows`,
    cellAt: (x) => [nearest(x), 0],
    placeOf: (i) => places[i],
    textOf: (i) =>
      `${countText(counts[i])} traces, mean score ${numberText(scores[i])}\n${(100 * shares[i]).toFixed(1)}% have label 1, ${labels[1]}\nclick: these rows in the table`,
    choose: (i) => {
      const [low, high] = edges[i];
      const isThere = conditions(state.filter).includes(LABELLED);
      show(between(score, low, high, high === 1) + (isThere ? "" : ` and ${LABELLED}`), [score]);
    },
  });
  return [
    title(`calibration: share of label 1, ${labels[1]} (upwards), at each score (to the right)`),
    canvas,
    soft(
      `on the dashed line a score is a probability; mean distance from it (ECE, 15 bins): ${numberText(found.error)}`,
    ),
  ];
}
