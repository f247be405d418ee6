/** The search beside the page: in a worker of the page's own script, so that the page answers on. */

import { Model } from "./answer";
import { InputError, type Table, type Value } from "./catalog";
import { type Given, programsOf, scriptOf } from "./loaded";
import { Question } from "./resolve";
import { type Result, Search } from "./search";

interface Request {
  given: Pick<Given, "data" | "profile">; columns: Table<number | string>;
  settings: Table<Value>; system: string; top: number;
}
type Reply = { done: number; total: number } | { result: Result; milliseconds: number } | { error: string };

const EVERY = 100;

/** Answers the page's requests, inside of a worker. */
export function serve(): void {
  const post = (reply: Reply) => (self as unknown as { postMessage(x: Reply): void }).postMessage(reply);
  self.onmessage = ({ data }: MessageEvent<Request>) => {
    const start = performance.now();
    let told = start;
    try {
      const model = new Model(data.given.data, data.given.profile, programsOf([]));
      const result = new Search(model).best(new Question(data.columns, data.settings, data.system), data.top, (done, total) => {
        const now = performance.now();
        if (now - told > EVERY) {
          told = now;
          post({ done, total });
        }
      });
      post({ result, milliseconds: performance.now() - start });
    } catch (error) {
      if (!(error instanceof InputError)) throw error;
      post({ error: error.message });
    }
  };
}

export interface Searching { stop(): void }

/** Starts a search in a worker; `hear` takes what it says. */
export async function searching(
  given: Given, script: string, structures: string[], asked: Omit<Request, "given">,
  hear: (reply: Reply) => void,
): Promise<Searching> {
  const programs = await Promise.all(structures.map((name) => scriptOf(given, name)));
  const text = ["self.dmodelPrograms={};", programs.join("\n"), "\n", script];
  const url = URL.createObjectURL(new Blob(text, { type: "text/javascript" }));
  const worker = new Worker(url);
  const stop = () => {
    worker.terminate();
    URL.revokeObjectURL(url);
  };
  worker.onmessage = ({ data }: MessageEvent<Reply>) => {
    if (!("done" in data)) stop();
    hear(data);
  };
  worker.onerror = (event) => {
    stop();
    hear({ error: `the search failed: ${event.message}` });
  };
  const { data, profile } = given;
  worker.postMessage({ given: { data, profile }, ...asked });
  return { stop };
}
