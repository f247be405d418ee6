/** Numbers and names as people read them. */

import type { Table } from "./catalog";

export const GIB = 2 ** 30, DAY = 86400;
const FORMATS = new Map<number, Intl.NumberFormat>();
export function short(value: number, digits = 3): string {
  let format = FORMATS.get(digits);
  if (!format) FORMATS.set(digits, (format = new Intl.NumberFormat("en", { maximumSignificantDigits: digits })));
  return format.format(value);
}
export const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
export const percent = (value: number, digits = 1) => `${(100 * value).toFixed(digits)} %`;
export const signed = (value: number, text: string) => `${value > 0 ? "+" : value < 0 ? "−" : "±"}${text}`;

const WORDS: Table<string> = {
  step_time_s: "step time", n_accel: "devices", global_batch: "global batch", seq_len: "sequence length",
  peak: "peak rate", "bandwidth.memory": "memory bandwidth", "bandwidth.intra": "inner bandwidth",
  "bandwidth.inter": "outer bandwidth",
};
export const plain = (name: string) => WORDS[name] ?? name.replace(/_bytes$/, "").replace(/_/g, " ");

/** A size by its path, without the records around it. */
export const sizeName = (path: string) =>
  path.replace(/^(cluster\.(chip|network)|plan\.(layout|precision|software)|plan|model|coefficients)\./, "")
    .replace(/^(mixers|feeds)\.(\d+)\.(.*)/, (_, side, i, name) =>
      `${name}${i === "0" ? "" : ` (${side === "mixers" ? "mixer" : "feed"} ${Number(i) + 1})`}`)
    .replace(/\.(\d+)$/, (_, i) => ` of level ${Number(i) + 1}`).replace(/_/g, " ");
