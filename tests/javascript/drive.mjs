// Runs the JavaScript client as a test asks: orders are JSON lines on stdin, events JSON lines on stdout.
import { createInterface } from "node:readline";
import { connect } from "../../clients/browser/whisper-stream.js";

const tell = (event) => process.stdout.write(`${JSON.stringify(event)}\n`);
const refuse = (error) =>
  tell({ type: "thrown", name: error.name, code: error.code, message: error.message, field: error.field });
let stream;

async function follow() {
  try {
    for await (const event of stream.events()) tell(event);
    tell({ type: "end", state: stream.state, pending: stream.pending });
  } catch (error) {
    refuse(error);
  }
}

const orders = {
  async connect({ url, options }) {
    stream = await connect(url, options);
    follow();
  },
  // samples of one level each: `levels` of them, `each` samples long
  async send({ levels, each }) {
    for (const level of levels) await stream.send(new Int16Array(each).fill(level));
    tell({ type: "sent" });
  },
  async flush() {
    tell({ type: "answer", to: "flush", with: (await stream.flush()).type });
  },
  async close() {
    tell({ type: "answer", to: "close", with: (await stream.close()).type });
  },
  async abort() {
    stream.abort();
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { order, ...values } = JSON.parse(line);
  // not awaited: a flush is answered only after later orders
  const carried = orders[order](values).catch(refuse);
  if (order === "connect" || order === "send") await carried;
}
