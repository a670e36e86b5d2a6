// Requests to the instance that the page came from: the status as a stream of events, and questions about stores.
//
// EventSource cannot send a header, and a token must not be in a URL: so the stream is read with fetch.

const KEPT = "coopstreams-tokens";
const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 8000;

export class Refused extends Error {
  constructor(status, body) {
    super(body.message ?? `HTTP status ${status}`);
    this.status = status;
    this.code = body.error ?? "";
    this.body = body;
  }
  get wantsToken() {
    return this.status === 401 || this.status === 403;
  }
}

// The application may have a token for each of two roles: it is sent all that were typed in.
export function addToken(token) {
  const tokens = (sessionStorage.getItem(KEPT) ?? "").split(",").filter((one) => one && one !== token);
  sessionStorage.setItem(KEPT, [...tokens, token].slice(-4).join(","));
}

async function get(path, headers = {}, signal = undefined) {
  const tokens = sessionStorage.getItem(KEPT);
  const sent = tokens ? { ...headers, authorization: `Bearer ${tokens}` } : headers;
  const response = await fetch(path, { headers: sent, cache: "no-store", credentials: "same-origin", signal });
  if (!response.ok) throw new Refused(response.status, await response.json().catch(() => ({})));
  return response;
}

// A whole number that JavaScript would round stays the text that came: it may be a key.
const exact = (_, value, context) => (Number.isInteger(value) && !Number.isSafeInteger(value) && context ? context.source : value);

export const ask = async (path) => JSON.parse(await (await get(path)).text(), exact);

// Calls `tell` with each status, and `lost` with each error; goes on until the page is closed.
export async function watch(tell, lost) {
  let pause = FIRST_PAUSE_MS;
  for (;;) {
    try {
      const response = await get("v1/status", { accept: "text/event-stream" });
      for await (const data of events(response.body)) {
        tell(JSON.parse(data));
        pause = FIRST_PAUSE_MS;
      }
      throw new Error("the instance ended the stream");
    } catch (error) {
      await lost(error);
    }
    await new Promise((resume) => setTimeout(resume, pause));
    pause = Math.min(2 * pause, LONGEST_PAUSE_MS);
  }
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = [];
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const parts = value.split("\n\n");
      for (let index = 0; index < parts.length - 1; index += 1) {
        const lines = (rest.join("") + parts[index]).split("\n");
        rest = [];
        yield lines.filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
      }
      rest.push(parts.at(-1));
    }
  } finally {
    reader.cancel().catch(() => {}); // unread, it would hold a stream of the instance and a connection of the browser
  }
}
