// Runs tasks in workers and ends those that do not answer.
//
// A spare worker is started ahead, so that a run that follows another one at once does not wait for Python to load.

import { Lived, Patience, type Verdict } from "./patience.ts";
import type { CaseNews, News, Reply, Start, Task } from "./protocol.ts";

export type Stop = Exclude<Verdict, null> | "died" | "cancelled";
export type Ended =
  | { kind: "done"; result: any }
  /** `seconds`: of the case, where a case was at work and is to blame; else of all. */
  | { kind: "stopped"; why: Stop; seconds: number; news?: CaseNews };

export interface Listener {
  /** Python is being loaded, or is ready. */
  loading?(share: number): void;
  started?(): void;
  printed?(text: string): void;
  news?(news: News, strained: boolean): void;
  /** The code is the page's own, so the worker is as clean after it as before. */
  trusted?: boolean;
}

export class Python {
  private spare: Booting | undefined;
  private running: { end(why: Stop, message?: string): void } | undefined;
  private fetched: Promise<Start> | undefined;
  private share = 0;
  private readonly watchers = new Set<(share: number) => void>();

  constructor(private readonly python: Record<string, string>) {}

  /** Loads a worker if none waits. */
  async prepare(loading?: (share: number) => void): Promise<void> {
    if (loading) {
      this.watchers.add(loading);
      loading(this.share);
    }
    try {
      this.fetched ??= this.fetch();
      const start = await this.fetched;
      this.spare ??= new Booting(start);
      await this.spare.ready;
      this.tell(1);
    } catch (error) {
      this.fetched = undefined;
      this.spare = undefined;
      throw error;
    } finally {
      if (loading) this.watchers.delete(loading);
    }
  }

  /** Python's parts, fetched once; the interpreter is compiled while it comes, and all workers share it. */
  private async fetch(): Promise<Start> {
    let loaded = 0;
    let total = 0;
    const get = async (address: string): Promise<Response> => {
      const response = await fetch(address);
      if (!response.ok || !response.body) throw new Error(`${address}: the server answered ${response.status}`);
      total += Number(response.headers.get("Content-Length") ?? 0);
      const counted = response.body.pipeThrough(
        new TransformStream<Uint8Array, Uint8Array>({
          transform: (chunk, controller) => {
            loaded += chunk.byteLength;
            this.tell((0.85 * loaded) / Math.max(total, 12e6));
            controller.enqueue(chunk);
          },
        }),
      );
      return new Response(counted, { headers: { "Content-Type": response.headers.get("Content-Type") ?? "" } });
    };
    const text = async ([name, address]: [string, string]) => [name, await (await get(address)).text()] as const;
    const [interpreter, library, ...files] = await Promise.all([
      WebAssembly.compileStreaming(get("pyodide/pyodide.asm.wasm")),
      get("pyodide/python_stdlib.zip").then((response) => response.arrayBuffer()),
      ...Object.entries(this.python).map(text),
    ]);
    return { type: "start", interpreter, library, files: Object.fromEntries(files) };
  }

  private tell(share: number): void {
    this.share = Math.max(this.share, Math.min(1, share));
    for (const watcher of this.watchers) watcher(this.share);
  }

  cancel(): void {
    this.running?.end("cancelled");
  }

  get busy(): boolean {
    return this.running !== undefined;
  }

  async task(task: Task, listener: Listener = {}): Promise<Ended> {
    this.cancel();
    await this.prepare(listener.loading);
    const booted = this.spare!;
    this.spare = undefined;
    const { worker } = booted;
    return new Promise((resolve) => {
      const lived = new Lived(performance.now());
      const now = () => lived.at(performance.now(), document.hidden);
      const patience = new Patience(task.type);
      let began = performance.now();
      let caseBegan = began;
      let last: CaseNews | undefined;
      const finish = (ended: Ended) => {
        clearInterval(watch);
        worker.onmessage = worker.onerror = null;
        if (listener.trusted && ended.kind === "done") this.spare ??= booted;
        else worker.terminate();
        if (this.running === running) this.running = undefined;
        resolve(ended);
        // The next one is loaded after the page has shown what this one came to.
        setTimeout(() => void this.prepare().catch(() => undefined), 50);
      };
      const running = {
        end: (why: Stop) => {
          const since = why === "hang" || why === "died" ? caseBegan : began;
          finish({ kind: "stopped", why, seconds: (performance.now() - since) / 1000, news: last });
        },
      };
      this.running = running;
      const watch = setInterval(() => {
        const why = patience.ask(now());
        if (why) running.end(why);
      }, 100);
      worker.onmessage = ({ data }: MessageEvent<Reply>) => {
        if (data.type === "started") {
          began = caseBegan = performance.now();
          patience.start(now());
          listener.started?.();
        } else if (data.type === "printed") listener.printed?.(data.text);
        else if (data.type === "news") {
          patience.hear(now(), data.news);
          if (data.news.event === "start") caseBegan = performance.now();
          if ("id" in data.news) last = data.news;
          listener.news?.(data.news, patience.strained);
        } else if (data.type === "done") finish({ kind: "done", result: data.result });
        else if (data.type === "died") running.end("died");
      };
      worker.onerror = () => running.end("died");
      worker.postMessage(task);
    });
  }
}

class Booting {
  readonly worker = new Worker(new URL("worker.js", import.meta.url), { type: "module", name: "python" });
  readonly ready: Promise<void>;

  constructor(start: Start) {
    this.ready = new Promise((resolve, reject) => {
      this.worker.onmessage = ({ data }: MessageEvent<Reply>) => {
        if (data.type === "ready") resolve();
        else if (data.type === "died") reject(new Error(data.message));
      };
      this.worker.onerror = (event) => reject(new Error(event.message || "the lab's Python could not be started"));
    });
    this.worker.postMessage(start);
  }
}
