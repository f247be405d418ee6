/** Parts of the page that are drawn behind an answer: within its frame while there is time, else in
 * tasks of their own, so that the next answer waits for one of them at most. */

/** Time that an answer and its parts may take of a frame, and parts of a task of their own [ms]. */
const FRAME = 10, TASK = 4;

export class Parts {
  private readonly waiting = new Set<number>();
  private readonly tasks = new MessageChannel();
  private next = 0;
  private asked = false;

  constructor(private readonly draws: (() => void)[], private readonly done: () => void) {
    this.tasks.port1.onmessage = () => {
      this.asked = false;
      this.until(performance.now() + TASK);
    };
  }

  /** Draws all of them anew; what waited for the last answer keeps its turn. `start`: of the frame. */
  all(start: number): void {
    this.draws.forEach((_, i) => this.waiting.add(i));
    this.until(start + FRAME);
  }

  private ask(): void {
    if (this.asked) return;
    this.asked = true;
    this.tasks.port2.postMessage(null);
  }

  private until(end: number): void {
    while (this.waiting.size && performance.now() < end) this.one();
    if (this.waiting.size) this.ask();
    else this.done();
  }

  private one(): void {
    while (!this.waiting.has(this.next)) this.next = (this.next + 1) % this.draws.length;
    this.waiting.delete(this.next);
    this.draws[this.next]();
  }
}
