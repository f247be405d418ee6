/** Texts of programs with names again (dmodel/explore/folded.py): "@" begins a statement, and "#n" is
 * the value of the n-th statement before the next one. */

const BODY = "function f";
const FIRST = "ABCDEFGHJKLMOPQRSTUVWXYZ$_";
const LATER = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

/** The short name of a value by its number in its function. */
function nameOf(number: number): string {
  let text = FIRST[number % FIRST.length], left = Math.floor(number / FIRST.length);
  for (; left; left = Math.floor((left - 1) / LATER.length)) text += LATER[(left - 1) % LATER.length];
  return text;
}

/** A text with what it copies of another: "~d,n~" is n letters, d behind the end of the last copy. */
export function joined(text: string, base: string): string {
  let end = 0;
  return text.replace(/~(-?\d+),(\d+)~/g, (_, ahead: string, many: string) => {
    const start = end + Number(ahead);
    end = start + Number(many);
    return base.slice(start, end);
  });
}

/** A value of another function is kept in an array, at the end of the function that has it. */
export function unfolded(text: string): string {
  const homes: number[] = [], starts: number[] = [], kept = new Map<number, number>(), tails: string[] = [];
  const across = (at: number): string => {
    let slot = kept.get(at);
    if (slot === undefined) {
      kept.set(at, (slot = kept.size));
      tails[homes[at]] += `t[${slot}]=+${nameOf(at - starts[homes[at]])};`;
    }
    return `t[${slot}]`;
  };
  const lines = text.split("\n").map((line, home) => {
    starts[home] = homes.length;
    tails[home] = "";
    if (!line.startsWith(BODY)) {
      kept.clear(); // another program has an array of its own
      return line;
    }
    return line.replace(/@|#(\d+)/g, (_, back?: string) => {
      if (back === undefined) return `const ${nameOf(homes.push(home) - 1 - starts[home])}=`;
      const at = homes.length - Number(back);
      return at >= starts[home] ? nameOf(at - starts[home]) : across(at);
    });
  });
  return lines.map((line, home) => (tails[home] ? `${line.slice(0, -1)}${tails[home]}}` : line)).join("\n");
}
