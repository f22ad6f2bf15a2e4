// Python in a worker of its own: loaded from the own host, then cut off from everything but messages to the page.
//
// One worker runs one task and is thrown away, so that nothing a program did to its interpreter reaches the next run.
// The page ends a worker that does not answer; nothing in here has to cooperate with that.

import hostSource from "./host.py";
import type { Reply, Start, Task } from "./protocol.ts";

type Call = (task: string, printed: (text: string) => void, news: (json: string) => void) => string;

const MEMORY = 1 << 30; // bytes that a program may have; beyond it Python raises MemoryError
const PAGE = 1 << 16;

const send = self.postMessage.bind(self) as (reply: Reply) => void;
let call: Call | undefined;

self.addEventListener("message", (event: MessageEvent<Start | Task>) => {
  const message = event.data;
  if (message.type === "start") {
    load(message).then(
      (loaded) => {
        call = loaded;
        send({ type: "ready" });
      },
      (error) => send({ type: "died", message: `Python could not be loaded: ${error}` }),
    );
    return;
  }
  if (!call) return;
  send({ type: "started" });
  try {
    const result = call(
      JSON.stringify(message),
      (text) => send({ type: "printed", text }),
      (json) => send({ type: "news", news: JSON.parse(json) }),
    );
    send({ type: "done", result: JSON.parse(result) });
  } catch (error) {
    send({ type: "died", message: String((error as Error)?.message ?? error).trim().split("\n").pop()! });
  }
});

async function load({ interpreter, library, files }: Start): Promise<Call> {
  limitMemory();
  useWhatIsHere(interpreter, library);
  const home = new URL("../pyodide/", import.meta.url).href;
  const { loadPyodide } = await import(`${home}pyodide.mjs`);
  const pyodide = await loadPyodide({ indexURL: home, jsglobals: harmless(), stdout: noop, stderr: noop });
  pyodide.FS.mkdirTree("/lab");
  for (const [name, text] of Object.entries(files)) pyodide.FS.writeFile(`/lab/${name}`, text);
  pyodide.FS.writeFile("/lab/host.py", hostSource);
  pyodide.runPython("import sys; sys.path.insert(0, '/lab'); import host");
  const run = pyodide.pyimport("host").run;
  // Warm: the definition's first call, and what the grader builds once.
  run(JSON.stringify({ type: "try", source: "def attend(*a): return None", text: "attend([1],[[1]],[[1]],[True])" }), noop, noop);
  // The definition is loaded and needs its file no more; a learner's `from plain import attend` would be no exercise.
  pyodide.runPython(
    "sys.path.remove('/lab')\n" +
      "import shutil; shutil.rmtree('/lab')\n" +
      "for name in ('plain', 'alike', 'host'): sys.modules.pop(name, None)\n" +
      "sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != 'JsFinder']\n" +
      "for name in [name for name in sys.modules if name.partition('.')[0] in ('js', 'pyodide_js')]: del sys.modules[name]\n",
  );
  cutOff();
  return run as Call;
}

const noop = (): void => undefined;

/** A program that allocates without end gets Python's MemoryError long before the browser or the machine runs out. */
function limitMemory(): void {
  const grow = WebAssembly.Memory.prototype.grow;
  WebAssembly.Memory.prototype.grow = function (pages: number): number {
    if (this.buffer.byteLength + pages * PAGE > MEMORY) throw new RangeError("out of memory");
    return grow.call(this, pages);
  };
}

/** The page compiled the interpreter and fetched the library already; Pyodide asks for them by address. */
function useWhatIsHere(interpreter: WebAssembly.Module, library: ArrayBuffer): void {
  WebAssembly.instantiateStreaming = async (_, imports) => ({
    module: interpreter,
    instance: await WebAssembly.instantiate(interpreter, imports),
  });
  const plainFetch = self.fetch.bind(self);
  self.fetch = async (asked, options) => {
    const address = asked instanceof Request ? asked.url : String(asked);
    if (address.endsWith("/python_stdlib.zip")) return new Response(library);
    if (address.endsWith(".wasm")) return new Response(new Uint8Array());
    return plainFetch(asked, options);
  };
}

/** Every way to the network, to stores, to the page, and to text that is run as JavaScript. */
const WAYS_OUT = new Set([
  "fetch", "fetchLater", "XMLHttpRequest", "WebSocket", "WebSocketStream", "EventSource", "WebTransport", "Worker",
  "SharedWorker", "BroadcastChannel", "importScripts", "indexedDB", "caches", "cookieStore", "FontFace", "fonts",
  "navigator", "Notification", "serviceWorker", "RTCPeerConnection", "eval", "postMessage", "Request",
]);

/** What Python's `js` module shows while it starts: the names of a worker, none that leads out or back to the worker. */
function harmless(): object {
  const names = Object.create(null);
  for (let owner: object | null = self; owner; owner = Object.getPrototypeOf(owner)) {
    for (const name of Object.getOwnPropertyNames(owner)) {
      const value = (self as unknown as Record<string, unknown>)[name];
      if (!WAYS_OUT.has(name) && value !== self && !(name in names)) names[name] = value;
    }
  }
  return names;
}

function cutOff(): void {
  for (const way of WAYS_OUT) {
    for (let owner: object | null = self; owner; owner = Object.getPrototypeOf(owner)) {
      if (!Object.hasOwn(owner, way)) continue;
      try {
        Object.defineProperty(owner, way, { value: undefined, writable: false, configurable: false });
      } catch {
        delete (owner as Record<string, unknown>)[way];
      }
    }
  }
  // Pyodide asks `instanceof Function`, so there is one, which makes nothing.
  const none = function (): never {
    throw new TypeError("no JavaScript is made from text here");
  };
  none.prototype = Function.prototype;
  Object.defineProperty(self, "Function", { value: none, writable: false, configurable: false });
  for (const some of [noop, async () => undefined, function* () {}, async function* () {}]) {
    Object.defineProperty(Object.getPrototypeOf(some), "constructor", { value: undefined });
  }
}
