// Whether scores are probabilities: how often those of about one score are hallucinations.

import { canvasOf, color, countText, numberText, soft, title } from "/page/dom.js";
import { explore } from "/page/explore.js";
import { between, conditions, show } from "/page/narrow.js";
import { state } from "/page/state.js";

const SIZE = 220;
const EDGE = 38;
const LABELLED = "(label == 0 or label == 1)"; // only rows with a label are counted

export function calibrationParts(found, score) {
  if (!found)
    return [
      title("calibration"),
      soft(`${score} is no probability: not all of it lies from 0 to 1`),
    ];
  const n = found.scores.length;
  const place = (value) => EDGE + value * SIZE;
  const up = (value) => SIZE + 8 - value * SIZE;
  const [canvas, context] = canvasOf(SIZE + EDGE + 10, SIZE + 30);
  context.fillStyle = color("--band");
  context.fillRect(EDGE, 8, SIZE, SIZE);
  context.strokeStyle = color("--soft");
  context.setLineDash([4, 4]);
  context.beginPath();
  context.moveTo(place(0), up(0));
  context.lineTo(place(1), up(1));
  context.stroke();
  context.setLineDash([]);
  context.strokeStyle = color("--mark");
  context.fillStyle = color("--mark");
  context.beginPath();
  for (let i = 0; i < n; i += 1) context.lineTo(place(found.scores[i]), up(found.shares[i]));
  context.stroke();
  const most = Math.max(...found.counts);
  for (let i = 0; i < n; i += 1) {
    context.beginPath();
    const radius = 2 + 5 * Math.sqrt(found.counts[i] / most);
    context.arc(place(found.scores[i]), up(found.shares[i]), radius, 0, 2 * Math.PI);
    context.fill();
  }
  context.fillStyle = color("--soft");
  context.font = "11px system-ui, sans-serif";
  for (const tick of [0, 0.5, 1]) {
    context.textAlign = "center";
    context.fillText(tick, Math.min(place(tick), SIZE + EDGE - 2), SIZE + 22);
    context.textAlign = "right";
    context.fillText(`${100 * tick}%`, EDGE - 3, up(tick) + 4);
  }
  const nearest = (x) => {
    const far = found.scores.map((score) => Math.abs(place(score) - x));
    return far.indexOf(Math.min(...far));
  };
  explore(canvas, {
    nx: n,
    ny: 1,
    label: `calibration of ${score}; arrow keys walk, Enter shows the rows`,
    cellAt: (x) => [nearest(x), 0],
    placeOf: (i) => [place(found.scores[i]), up(found.shares[i])],
    textOf: (i) =>
      `${countText(found.counts[i])} traces, mean score ${numberText(found.scores[i])}\n${(100 * found.shares[i]).toFixed(1)}% are hallucinations\nclick: these rows in the table`,
    choose: (i) => {
      const [low, high] = found.edges[i];
      const isThere = conditions(state.filter).includes(LABELLED);
      show(between(score, low, high, high === 1) + (isThere ? "" : ` and ${LABELLED}`), [score]);
    },
  });
  return [
    title("calibration: share of hallucinations (upwards) at each score (to the right)"),
    canvas,
    soft(
      `on the dashed line a score is a probability; mean distance from it (ECE, 15 bins): ${numberText(found.error)}`,
    ),
  ];
}
