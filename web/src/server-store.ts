// The notebook in a file of the learner's, behind the server.

import { Conflict, type Preview, type Saved, type Store } from "./store.ts";
import type { Attempt, Failure, Notebook } from "./types.ts";

export class ServerStore implements Store {
  readonly inBrowser = false;

  read(): Promise<Notebook> {
    return ask("GET", "api/notebook");
  }

  saveNote(lesson: string, section: string, text: string, baseRevision: number): Promise<Saved> {
    return ask("PUT", `api/notes/${lesson}/${section}`, { text, base_revision: baseRevision });
  }

  saveDraft(lesson: string, code: string, baseRevision: number): Promise<Saved> {
    return ask("PUT", `api/drafts/${lesson}`, { code, base_revision: baseRevision });
  }

  async setBookmark(lesson: string, section: string, on: boolean): Promise<void> {
    await ask("PUT", `api/bookmarks/${lesson}/${section}`, { on });
  }

  async setCompleted(lesson: string, on: boolean): Promise<void> {
    await ask("PUT", `api/completed/${lesson}`, { on });
  }

  addAttempt(attempt: Omit<Attempt, "id" | "time">): Promise<{ id: string }> {
    return ask("POST", "api/attempts", attempt);
  }

  addCase(failure: Omit<Failure, "id" | "time">): Promise<{ id: string }> {
    return ask("POST", "api/cases", failure);
  }

  async deleteCase(id: string): Promise<void> {
    await ask("DELETE", `api/cases/${id}`);
  }

  async exportText(format: "json" | "markdown"): Promise<string> {
    return (await request("GET", `api/export?format=${format}`)).text();
  }

  previewImport(document: unknown): Promise<Preview> {
    return ask("POST", "api/import/preview", { document });
  }

  takeIn(document: unknown): Promise<Preview> {
    return ask("POST", "api/import", { document });
  }
}

async function ask(method: string, address: string, body?: unknown): Promise<any> {
  const response = await request(method, address, body);
  return response.status === 204 ? undefined : response.json();
}

async function request(method: string, address: string, body?: unknown): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(address, {
      method,
      headers: body === undefined ? {} : { "Content-Type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
      // A tab that is being closed still sends its last text; browsers allow 64 KiB for that.
      keepalive: method === "PUT" && JSON.stringify(body).length < 20000,
    });
  } catch {
    throw new Error("The server does not answer. Is `qkv learn` still running? What you typed stays here.");
  }
  if (response.ok) return response;
  const answer = await response.json().catch(() => ({}));
  if (response.status === 409 && "revision" in answer) {
    throw new Conflict(String(answer.text ?? answer.code ?? ""), Number(answer.revision));
  }
  throw new Error(answer.error ?? `The server answered ${response.status}.`);
}
