// What one list has and another has not.

const MAX_PAIRS = 4e6; // compared; in longer lists all between their common ends differs

// The places in a list of what is not in the longest common subsequence with another.
export function uncommon(list, other) {
  const n = Math.min(list.length, other.length);
  let start = 0;
  while (start < n && list[start] === other[start]) start += 1;
  let end = 0;
  while (end < n - start && list.at(-1 - end) === other.at(-1 - end)) end += 1;
  const [a, b] = [list.slice(start, list.length - end), other.slice(start, other.length - end)];
  const places = new Set(a.map((_, i) => start + i));
  if (a.length * b.length > MAX_PAIRS) return places;
  const width = b.length + 1;
  const longest = new Uint16Array((a.length + 1) * width); // of what follows two places
  for (let i = a.length - 1; i >= 0; i -= 1)
    for (let j = b.length - 1; j >= 0; j -= 1)
      longest[i * width + j] =
        a[i] === b[j]
          ? 1 + longest[(i + 1) * width + j + 1]
          : Math.max(longest[(i + 1) * width + j], longest[i * width + j + 1]);
  for (let i = 0, j = 0; i < a.length && j < b.length;) {
    const isBoth = a[i] === b[j];
    const isFirst = longest[(i + 1) * width + j] >= longest[i * width + j + 1];
    if (isBoth) places.delete(start + i);
    if (isBoth || isFirst) i += 1;
    if (isBoth || !isFirst) j += 1;
  }
  return places;
}
