/** Parts of the page that are drawn behind an answer: one after the other while the browser has
 * nothing else to do, so that the next answer does not wait for them. */

/** Time that a part may take [ms], and the longest that one waits. */
const EACH = 5, LONGEST = 100;

type Work = (left: () => number) => void;

function whenIdle(work: Work): void {
  if ("requestIdleCallback" in globalThis)
    requestIdleCallback((free) => work(() => free.timeRemaining()), { timeout: LONGEST });
  else setTimeout(() => work(() => 0), 0);
}

export class Parts {
  private readonly waiting = new Set<number>();
  private next = 0;
  private asked = false;

  constructor(private readonly draws: (() => void)[], private readonly done: () => void) {}

  /** Draws all of them anew; what waited for the last answer keeps its turn. */
  all(): void {
    this.draws.forEach((_, i) => this.waiting.add(i));
    this.ask();
  }

  private ask(): void {
    if (this.asked) return;
    this.asked = true;
    whenIdle((left) => {
      this.asked = false;
      do this.one();
      while (this.waiting.size && left() > EACH);
      if (this.waiting.size) this.ask();
      else this.done();
    });
  }

  private one(): void {
    while (!this.waiting.has(this.next)) this.next = (this.next + 1) % this.draws.length;
    this.waiting.delete(this.next);
    this.draws[this.next]();
  }
}
