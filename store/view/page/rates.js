// Whether scores tell the two labels apart (ROC), and whether they are probabilities (calibration):
// pictures of shares over shares.

import { countText, element, numberText, soft, title } from "/page/dom.js";
import { explore } from "/page/explore.js";
import { between, conditions, show } from "/page/narrow.js";
import { axis, dot, line, plot } from "/page/plot.js";
import { change, state } from "/page/state.js";

const [SIDE, SIZE] = [220, 268]; // of the square, and of the picture
const SHARES = [0, 0.5, 1];
const LABELLED = "(label == 0 or label == 1)"; // only rows with a label are counted
const DIAGONAL = { "stroke-dasharray": "4 4" };

const percent = (share) => `${(100 * share).toFixed(1)}%`;
const shortPercent = (share) => `${100 * share}%`;
const x = axis([0, 1], [38, 38 + SIDE], SHARES);
const y = axis([0, 1], [8 + SIDE, 8], SHARES, shortPercent);
const place = (right, up) => [x.at(right), y.at(up)];

// A square from 0 to 1 in both directions, with its diagonal, a line through places, and dots.
const square = (textOf, places, ...dots) =>
  plot(
    SIZE,
    SIDE + 30,
    { ...x, textOf },
    y,
    line([place(0, 0), place(1, 1)], "var(--soft)", DIAGONAL),
    line(places, "var(--mark)", { "stroke-width": 1.5 }),
    ...dots,
  );

const nearest = (places, far) => {
  const distances = places.map(far);
  return distances.indexOf(Math.min(...distances));
};

// at: the shares of label 0 and of label 1 that the threshold in force finds.
export function rocParts(/** @type {Roc | null} */ found, score, labels, at) {
  if (!found) return [soft("ROC: none of the rows in the table has one of the labels")];
  const { thresholds, false_rates: alarms, true_rates: hits } = found;
  const places = thresholds.map((_, i) => place(alarms[i], hits[i]));
  const dots = at.every(Number.isFinite) ? [dot(place(...at), 4)] : [];
  const picture = square(shortPercent, [place(0, 0), ...places], ...dots);
  explore(picture, {
    nx: places.length,
    label: `ROC of ${score}; arrow keys walk, Enter takes the threshold`,
    cellAt: (px, py) => [nearest(places, ([left, top]) => Math.hypot(left - px, top - py)), 0],
    placeOf: (i) => places[i],
    textOf: (i) =>
      `from ${numberText(thresholds[i])} on\n${percent(hits[i])} of ${labels[1]}\n${percent(alarms[i])} of ${labels[0]}\nclick: this threshold`,
    choose: (i) => change({ threshold: thresholds[i] }),
  });
  return [
    title(`ROC: share of label 1, ${labels[1]}, that is found (upwards), over that of label 0`),
    picture,
    soft("the dot is the threshold in force"),
  ];
}

export function calibrationParts(/** @type {Calibration | null} */ found, score, labels) {
  if (!found)
    return [
      title("calibration"),
      soft(`${score} is no probability: not all of it lies from 0 to 1`),
    ];
  const { scores, shares, counts, edges } = found;
  const places = scores.map((each, i) => place(each, shares[i]));
  const most = Math.max(...counts);
  const dots = places.map((each, i) => dot(each, 2 + 5 * Math.sqrt(counts[i] / most)));
  const picture = square(String, places, ...dots);
  explore(picture, {
    nx: places.length,
    label: `calibration of ${score}; arrow keys walk, Enter shows the rows`,
    cellAt: (px) => [nearest(places, ([left]) => Math.abs(left - px)), 0],
    placeOf: (i) => places[i],
    textOf: (i) =>
      `${countText(counts[i])} traces, mean score ${numberText(scores[i])}\n${percent(shares[i])} have label 1, ${labels[1]}\nclick: these rows in the table`,
    choose: (i) => {
      const [low, high] = edges[i];
      const isThere = conditions(state.filter).includes(LABELLED);
      show(between(score, low, high, high === 1) + (isThere ? "" : ` and ${LABELLED}`), [score]);
    },
  });
  return [
    title(`calibration: share of label 1, ${labels[1]} (upwards), at each score (to the right)`),
    picture,
    soft(
      `on the dashed line a score is a probability; mean distance from it (ECE, 15 bins): ${numberText(found.error)}`,
    ),
  ];
}

// How often what is said at the threshold is right; a click shows the rows in the table. Infinite
// scores, which are among those missing, are not counted.
export function confusion(
  score,
  threshold,
  labels,
  sums,
  /** @type {number[]} */ [nAlarms, nMisses],
  /** @type {Roc | null} */ roc,
  nMissing,
) {
  const cell = (label, sign, n, name) => {
    const part = `label == ${label} and ${score} ${sign}`;
    const order = { sort: score, descending: sign === ">=" ? "1" : "" };
    const finite = ` and ${score} ${sign === ">=" ? "< inf" : "> -inf"}`;
    const narrow = `${part} ${threshold}${nMissing ? finite : ""}`;
    const choose = () => show(narrow, [score, "label"], order);
    const share = sums[label] ? ` (${Math.round((100 * n) / sums[label])}%)` : "";
    const text = `${name} ${countText(n)}${share}`;
    return element("td", element("button", { onclick: choose, title: `${part} it` }, text));
  };
  const line = (...cells) => element("tr", ...cells);
  const head = (text) => element("th", text);
  const [nRight, nFound] = [sums[0] - nAlarms, sums[1] - nMisses];
  const ratio = (a, b) => (b ? percent(a / b) : "–");
  return [
    element(
      "table.confusion",
      line(
        element("td", {}),
        head(`≥ ${numberText(threshold)}`),
        head(`< ${numberText(threshold)}`),
      ),
      line(
        head(`label 1, ${labels[1]}`),
        cell(1, ">=", nFound, "found"),
        cell(1, "<", nMisses, "missed"),
      ),
      line(
        head(`label 0, ${labels[0]}`),
        cell(0, ">=", nAlarms, "false alarms"),
        cell(0, "<", nRight, "passed"),
      ),
    ),
    soft(
      `AUROC ${roc ? numberText(roc.auroc) : "–"}, accuracy ${ratio(nRight + nFound, sums[0] + sums[1])}, precision ${ratio(nFound, nFound + nAlarms)}`,
    ),
  ];
}
