// Requests to the server that the page came from; an error of the server is thrown with its text.

import { $, showError } from "/page/dom.js";

// An exported page holds the answers of its server.
export const isExported = Boolean($("#recorded"));

const whenLost = () => {
  throw new Error("the server does not answer: start python -m store view again");
};

export async function get(path, query) {
  if (isExported) return (await import("/page/recorded.js")).answer(path, query);
  const text = new URLSearchParams(query ?? {}).toString();
  return checked(await fetch(text ? `${path}?${text}` : path).catch(whenLost));
}

export const post = async (path, values) =>
  checked(await fetch(path, { method: "POST", body: JSON.stringify(values) }).catch(whenLost));

async function checked(response) {
  if (response.ok) return response;
  const body = await response.text();
  let message = body;
  try {
    message = JSON.parse(body).error ?? body;
  } catch {
    /* a refusal is plain text */
  }
  throw new Error(message);
}

/**
 * @template {string} Path
 * @param {Path} path
 * @returns {Promise<AnswerTo<Path>>}
 */
export const getJson = async (path, query) => (await get(path, query)).json();

const ARRAYS = {
  float32: Float32Array,
  float64: Float64Array,
  int8: Int8Array,
  int16: Int16Array,
  int32: Int32Array,
  uint8: Uint8Array,
  uint16: Uint16Array,
  uint32: Uint32Array,
  bool: Uint8Array,
  int64: BigInt64Array,
  uint64: BigUint64Array,
};

/** Numbers that the server sends as bytes. @returns {Promise<Numbers>} */
export async function getArray(...request) {
  const response = await get(...request);
  const shape = response.headers.get("X-Shape").split(",").map(Number);
  const values = new ARRAYS[response.headers.get("X-Dtype")](await response.arrayBuffer());
  return { values, shape, headers: response.headers };
}

// Asks after a pause, and takes the answer unless something else was asked, or nothing any more.
export function afterPause(pauseMs) {
  let number = 0;
  let timer = 0;
  const stop = () => {
    clearTimeout(timer);
    number += 1; // what is under way comes too late
  };
  const ask = (load, take) => {
    stop();
    const mine = number;
    timer = setTimeout(async () => {
      try {
        const found = await load();
        if (mine === number) take(found);
      } catch (error) {
        showError(error);
      }
    }, pauseMs);
  };
  return { ask, stop };
}
