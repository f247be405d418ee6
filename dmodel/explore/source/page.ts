/** The page: controls, the answer, the search, and the link. */

import { type Answer, Model } from "./answer";
import { InputError, type Table } from "./catalog";
import { chart } from "./chart";
import { Reader, taken } from "./configs";
import { commands } from "./command";
import { Doubt, type Ends } from "./doubt";
import { curve, element, fill, node, type Piece } from "./draw";
import { type Given, givenIn, knownOf, load, Missing, programsOf, publishedOf } from "./loaded";
import { frontier } from "./limits";
import { chipOf, levelsOf, usualPrecision } from "./machine";
import { structure } from "./models";
import { again, measuredTime, type Neighbour, neighbours, type Published } from "./published";
import { Parts } from "./parts";
import { Question } from "./resolve";
import type { Found, Result } from "./search";
import { memories, near, plans, type Shown, slopes, summary, times } from "./show";
import {
  asked, type Both, CONTROLS, FACTORS, FIRST, fromHash, layoutOf, PRESETS, type State, toHash,
  withoutLayout, wrong,
} from "./state";
import { type Searching, searching } from "./worker";
import { short } from "./words";

declare global { var dmodelAnswer: Table<unknown> | null; var dmodelSearch: unknown }

const read = (id: string) => document.getElementById(id)!;
const field = (id: string) => read(id) as HTMLInputElement;
const NEAREST = 5, TOP = 10, PREPARED = ["step_time_s"];
/** Rest after a change before the address holds it [ms]: browsers refuse more than a few a second. */
const REST = 350;

class Page {
  private readonly given: Given = givenIn(read("given").textContent!);
  private readonly model = new Model(this.given.data, this.given.profile, programsOf(Object.keys(this.given.packed)));
  private readonly unit = (of: State) => this.machineNumber(of);
  private state: State = { ...FIRST };
  private pinned: State | null = null;
  private published: Published | null = null;
  private doubt: Doubt | null = null;
  private turn = 0;
  private frame = 0;
  private isAnswered = true;
  private resting = 0;
  private isLinked = true;
  private search: Searching | null = null;
  private readonly filled = new Map<string, string>();
  private nearest: [string, Neighbour[]] = ["", []];
  private kept: [string, Answer] | null = null;
  private now: Shown | null = null;
  private beside: Shown | null = null;
  private readonly parts = new Parts([
    () => fill(read("time"), times(this.now!, this.beside)),
    () => fill(read("memory"), memories(this.now!, this.beside)),
    () => fill(read("slopes"), [slopes(this.now!)]),
    () => this.showChart(this.now!, this.beside),
    () => this.showNear(),
    () => this.showOpened(this.now!),
    () => this.showFacts(this.now!.found),
  ], () => this.done());

  start(): void {
    globalThis.dmodelPrograms = {};
    this.presets();
    this.listen();
    window.addEventListener("hashchange", () => {
      this.restore();
      this.changed();
    });
    this.restore();
    void this.update().then(() => this.later());
  }

  /** What is not needed for a first answer. */
  private async later(): Promise<void> {
    this.fillLists();
    const [published, known] = await Promise.all([publishedOf(this.given), knownOf(this.given)]);
    this.published = published;
    this.doubt = known && new Doubt(this.model.catalog, this.given.profile, known);
    this.changed();
  }

  private machineNumber(of: State): (name: string) => number {
    const { data } = this.given, { catalog } = this.model;
    return (name) => {
      const { part, leaf } = data.quantities[name];
      if (part === "chip") return chipOf(catalog, of.accelerator, of.precision || usualPrecision(catalog, of.accelerator))[leaf];
      const chip = data.chips[catalog.resolved("chips", of.accelerator)];
      const { levels } = data.systems[of.system ? catalog.resolved("systems", of.system) : chip.system!];
      return levels[part === "intra" ? 0 : levels.length - 1][leaf];
    };
  }

  private answered(of: State, withSlopes = false): Answer {
    const problem = wrong(of);
    if (problem) throw new InputError(problem);
    const { columns, settings, system } = asked(of, this.machineNumber(of));
    return this.model.answer(new Question(columns, settings, system), withSlopes);
  }

  private shown(found: Answer, of: State): Shown {
    const { values } = found, tokens = found.case.plan.global_batch * (found.case.model.seq_len as unknown as number);
    const measured = this.state.measured ? measuredTime(
      Number(this.state.measured), this.state.unit ?? "", tokens, Number(of.n_accel),
      values["outputs.step_time_s"], values["outputs.mfu"]) : null;
    return { found, ends: this.ends(found, of), tokens: Number(this.state.tokens || 0), measured };
  }

  /** The answer of the state that is kept beside; it stays while that does. */
  private answerBeside(): Answer | null {
    if (!this.pinned) return null;
    const key = JSON.stringify(this.pinned);
    if (this.kept?.[0] !== key) this.kept = [key, this.answered(this.pinned)];
    return this.kept[1];
  }

  private ends(found: Answer, of: State): Table<Ends> | null {
    if (!this.doubt) return null;
    const program = this.model.programsOf(found.structure).evaluated;
    const { case: whole, spread, built } = found;
    return this.doubt.ends(
      { case: whole, spread, built, accelerator: of.accelerator, stack: of.stack }, program, PREPARED);
  }

  private near(found: Answer): Neighbour[] {
    if (!this.published) return [];
    const { columns } = found.question, layout = found.case.plan.layout as Table<number>;
    const { model } = found.case;
    const run = {
      ...columns, ...layout, n_layers: model.n_layers as unknown as number,
      d_model: model.d_model as unknown as number, seq_len: model.seq_len as unknown as number,
      recompute: again(layout),
    };
    const key = JSON.stringify(run);
    if (this.nearest[0] !== key)
      this.nearest = [key, neighbours(this.published, this.model.catalog, run, NEAREST)];
    return this.nearest[1];
  }

  /** Fills a part of the page where what it says has changed. */
  private once(id: string, key: string, parts: () => Piece[]): void {
    if (this.filled.get(id) === key) return;
    this.filled.set(id, key);
    fill(read(id), parts());
  }

  private showChart(now: Shown, kept: Shown | null): void {
    const close = this.near(now.found), range = now.ends?.step_time_s;
    const beside = { ends: range ? [range.low, range.high] as [number, number] : null, measured: now.measured, near: close };
    const pinned = kept && this.pinned ? { state: this.pinned, found: kept.found } : null;
    const [drawn, said] = chart(this.state, now.found, pinned, beside, this.model, (of) => this.answered(of), this.unit);
    fill(read("curve"), [curve(drawn)]);
    fill(read("legend"), [said]);
  }

  private showNear(): void {
    const close = this.near(this.now!.found);
    this.once("near", this.published ? this.nearest[0] : "", () => near(close));
  }

  private showFacts(found: Answer): void {
    const facts = found.facts.map((fact) => `${fact.says} (${fact.source}, ${fact.date})`);
    this.once("facts", facts.join("\n"), () => facts.map((text) => element("li", text)));
  }

  /** Draws by programs that may have to be loaded first. */
  private loading(draw: () => void): void {
    try {
      draw();
    } catch (error) {
      if (!(error instanceof Missing)) throw error;
      void load(this.given, error.message).then(() => this.changed());
    }
  }

  /** What is drawn only while it is open. */
  private showOpened(now: Shown): void {
    const isOpen = (id: string) => (read(id) as HTMLDetailsElement).open, { state } = this;
    if (isOpen("limits"))
      this.loading(() => fill(read("frontier"), frontier(this.given.limits, this.model.programsOf, this.model.catalog,
        now.found, state.accelerator, now.tokens, Number(field("width").value))));
    if (!isOpen("shell")) return;
    const { data, profile } = this.given, stack = this.model.catalog.knownFamily(state.stack.split("/")[0]);
    fill(read("command"), [commands(data, state, profile.name, stack ? stack[1] : "", this.machineNumber(state))]);
  }

  private async copy(): Promise<void> {
    const text = read("command").textContent!;
    try {
      await navigator.clipboard.writeText(text);
      read("copied").textContent = "Copied.";
    } catch {
      getSelection()?.selectAllChildren(read("command"));
      read("copied").textContent = "Selected: copy it with the keyboard.";
    }
  }

  private fail(text: string): void {
    fill(read("error"), [text]);
    read("answer").classList.add("stale");
    globalThis.dmodelAnswer = { error: text };
  }

  /** Answers at once, what follows before the next frame with that, and has the address hold it after
   * a rest. */
  private changed(): void {
    globalThis.dmodelAnswer = null;
    this.isLinked = false;
    clearTimeout(this.resting);
    this.resting = window.setTimeout(() => this.link(), REST);
    this.isAnswered = this.frame === 0;
    if (this.isAnswered) {
      this.frame = requestAnimationFrame(() => {
        this.frame = 0;
        if (!this.isAnswered) void this.update();
      });
      void this.update();
    }
  }

  private link(): void {
    const both: Both = { state: this.state, pinned: this.pinned };
    history.replaceState(null, "", `#${toHash(both, this.given.id)}`);
    this.isLinked = true;
    if (globalThis.dmodelAnswer) globalThis.dmodelAnswer.link = true;
  }

  /** Answers, shows the numbers, and has the rest of the page drawn behind them. */
  private async update(): Promise<void> {
    const turn = ++this.turn, start = performance.now();
    for (;;) {
      try {
        this.show(start);
        return;
      } catch (error) {
        if (error instanceof Missing) {
          await load(this.given, error.message);
          if (turn !== this.turn) return;
          continue;
        }
        if (!(error instanceof InputError)) throw error;
        this.fail(error.message);
        return;
      }
    }
  }

  private show(start: number): void {
    const found = this.answered(this.state, true), kept = this.answerBeside();
    const { side } = this.given.profile.intervals ?? { side: 0 };
    this.now = this.shown(found, this.state);
    this.beside = kept && this.shown(kept, this.pinned!);
    fill(read("error"), []);
    read("answer").classList.remove("stale");
    fill(read("summary"), summary(this.now, this.beside, side));
    globalThis.dmodelAnswer = {
      values: found.values, case: found.case, ends: this.now.ends, measured: this.now.measured,
      kept: kept && kept.values, link: this.isLinked, milliseconds: performance.now() - start,
    };
    this.parts.all(start);
  }

  /** All parts show the last answer. */
  private done(): void {
    if (globalThis.dmodelAnswer) globalThis.dmodelAnswer.near = this.nearest[1];
  }

  private fill(): void {
    for (const key of CONTROLS) field(key).value = this.state[key] ?? "";
    for (const key of FACTORS) {
      field(key).value = String(Math.log2(Number(this.state[key] || 1)));
      read(`${key}-text`).textContent = `${short(Number(this.state[key] || 1))} ×`;
    }
    field("unpin").hidden = this.pinned === null;
  }

  private presets(): void {
    const buttons = Object.entries(PRESETS).map(([name, preset]) =>
      ({ ...node("button", { type: "button" }, name), press: () => this.set({ ...preset }, this.pinned) }));
    fill(read("presets"), buttons);
  }

  private fillLists(): void {
    const options = (id: string, names: string[]) =>
      fill(read(id), names.map((value) => node("option", { value })));
    const { models, chips, stacks, systems } = this.given.data;
    options("models", Object.keys(models));
    options("chips", Object.keys(chips));
    options("systems", Object.keys(systems));
    options("stacks", Object.values(stacks).filter((f) => !f.id.startsWith("_"))
      .flatMap((f) => [f.id, ...f.members.filter((m) => !m.endsWith("*"))]));
  }

  private listen(): void {
    for (const key of CONTROLS)
      read(key).addEventListener("input", () => {
        this.state[key] = field(key).value;
        if (key === "model") delete this.state.own;
        this.changed();
      });
    for (const key of FACTORS)
      read(key).addEventListener("input", () => {
        const factor = 2 ** Number(field(key).value);
        this.state[key] = factor === 1 ? "" : String(factor);
        read(`${key}-text`).textContent = `${short(factor)} ×`;
        this.changed();
      });
    const press = (id: string, act: () => void) => read(id).addEventListener("click", act);
    press("reset", () => this.set({ ...FIRST }, null));
    press("pin", () => this.set(this.state, { ...this.state }));
    press("unpin", () => this.set(this.state, null));
    press("copy", () => void this.copy());
    for (const [id, event] of [["limits", "toggle"], ["shell", "toggle"], ["width", "input"]])
      read(id).addEventListener(event, () => this.changed());
    press("take", () => this.take());
    press("search", () => void this.find());
    press("stop", () => this.stop("Stopped."));
  }

  private set(next: State, pinned: State | null): void {
    this.state = next;
    this.pinned = pinned;
    this.fill();
    this.changed();
  }

  /** Takes the model of the pasted configuration. */
  private take(): void {
    const said = read("taken"), { configs, kinds } = this.given.data;
    try {
      const { shape, notes } = new Reader(configs, kinds).read(field("config").value);
      const own = JSON.stringify(shape), model = taken(this.model.catalog, own);
      this.set({ ...this.state, own, model, seq_len: this.state.seq_len || String(shape.seq_len) }, this.pinned);
      said.textContent = ["Read.", ...notes].join(" ");
    } catch (error) {
      if (!(error instanceof InputError)) throw error;
      said.textContent = error.message;
    }
  }

  private restore(): void {
    const found = fromHash(location.hash, this.given.id);
    read("notice").textContent = found ? found[1] : "";
    try {
      for (const of of found ? [found[0].state, found[0].pinned] : [])
        if (of?.own) of.model = taken(this.model.catalog, of.own);
    } catch (error) {
      if (!(error instanceof InputError)) throw error;
      read("notice").textContent = error.message;
    }
    this.state = found ? found[0].state : { ...FIRST };
    this.pinned = found ? found[0].pinned : null;
    this.fill();
  }

  private stop(text: string): void {
    this.search?.stop();
    this.search = null;
    field("stop").hidden = field("progress").hidden = true;
    read("searched").textContent = text;
  }

  /** Looks for the best layouts of the job, in a worker. */
  private async find(): Promise<void> {
    this.stop("Searching …");
    const job = withoutLayout(this.state), bar = read("progress") as HTMLProgressElement;
    try {
      const problem = wrong(job);
      if (problem) throw new InputError(problem);
      const words = asked(job, this.machineNumber(job)), kinds = this.kindsOf(words);
      field("stop").hidden = bar.hidden = false;
      bar.removeAttribute("value");
      const script = read("script").textContent!;
      this.search = await searching(this.given, script, kinds, { ...words, top: TOP }, (reply) => {
        if ("done" in reply) {
          bar.max = reply.total;
          bar.value = reply.done;
          read("searched").textContent = `${reply.done.toLocaleString("en")} of ${reply.total.toLocaleString("en")} layouts …`;
        } else if ("error" in reply) this.stop(reply.error);
        else this.searched(reply.result, reply.milliseconds);
      });
    } catch (error) {
      if (!(error instanceof InputError)) throw error;
      this.stop(error.message);
    }
  }

  /** Programs that a job needs: of its model, and of that on its network. */
  private kindsOf({ columns, system }: ReturnType<typeof asked>): string[] {
    const { resolver, catalog, programsOf } = this.model, built = resolver.builtOf(String(columns.model));
    const kinds = [...new Set([structure(built), structure(built, levelsOf(catalog, system))])];
    for (const name of kinds) if (!(name in this.given.packed)) programsOf(name);
    return kinds;
  }

  private searched(result: Result, milliseconds: number): void {
    const { considered, feasible, share, left } = result;
    const risk = this.given.data.search.risk;
    const text = [`${considered.toLocaleString("en")} layouts in ${short(milliseconds / 1000, 2)} s; ` +
      `${feasible.toLocaleString("en")} need at most ${(100 * share).toFixed(0)} % of a device's memory ` +
      `(a risk of running out of ${100 * risk} %).`];
    if (left.length)
      text.push(`This stack's pipelines run as ${left.join(", ")}, which this page does not know: layouts ` +
        "without a pipeline only; `dmodel design` has all.");
    this.stop(text.join(" "));
    fill(read("best"), [plans(result, (found: Found) => this.set({ ...this.state, ...layoutOf(found) }, this.pinned))]);
    globalThis.dmodelSearch = { ...result, milliseconds };
  }
}

/** Runs the page. */
export function begin(): void {
  new Page().start();
}
