// Use Microsoft's JavaScript SDK for Service Bus to run all operations against the lab's broker, on
// separate queues. The program prints a line for every operation, "ok NAME" or "failed NAME: REASON".
// The exit code is 1 if an operation failed.
//   node servicebus.mjs FOLDER-OF-NODE_MODULES CONNECTION-STRING QUEUE...
import { createRequire } from "node:module";
import assert from "node:assert/strict";

const [folder, connection, ...queues] = process.argv.slice(2);
const { ServiceBusClient } = createRequire(`${folder}/package.json`)("@azure/service-bus");
const WAIT = { maxWaitTimeInMs: 5000 };
let count = 0;
// The SDK needs an id to settle a message by its lock token.
const of = (body, more = {}) => ({ body, messageId: `m${++count}`, ...more });
const LATER = () => new Date(Date.now() + 100_000);

async function one(receiver) {
  const [message] = await receiver.receiveMessages(1, WAIT);
  assert.ok(message, "no message was received");
  return message;
}

const VERBS = {
  async send({ sender, receiver }) {
    await sender.sendMessages([of("a"), of("b", { applicationProperties: { n: 7 } })]);
    const bodies = [(await one(receiver)).body, (await one(receiver)).body];
    assert.deepEqual(bodies.sort(), ["a", "b"]);
  },
  async receiveAndDelete({ client, queue, sender }) {
    await sender.sendMessages(of("a"));
    const taker = client.createReceiver(queue, { receiveMode: "receiveAndDelete" });
    assert.equal((await one(taker)).body, "a");
    assert.deepEqual(await taker.peekMessages(1), []);
  },
  async complete({ sender, receiver }) {
    await sender.sendMessages(of("a"));
    await receiver.completeMessage(await one(receiver));
    assert.deepEqual(await receiver.peekMessages(1), []);
  },
  async abandon({ sender, receiver }) {
    await sender.sendMessages(of("a"));
    await receiver.abandonMessage(await one(receiver));
    assert.equal((await one(receiver)).deliveryCount, 1);
  },
  async deadLetter({ client, queue, sender, receiver }) {
    await sender.sendMessages(of("a"));
    const why = { deadLetterReason: "Test", deadLetterErrorDescription: "set aside" };
    await receiver.deadLetterMessage(await one(receiver), why);
    const letter = await one(client.createReceiver(queue, { subQueueType: "deadLetter" }));
    assert.equal(letter.deadLetterReason, "Test");
    assert.equal(letter.deadLetterErrorDescription, "set aside");
  },
  async renew({ sender, receiver }) {
    await sender.sendMessages(of("a"));
    const message = await one(receiver);
    const before = message.lockedUntilUtc;
    await new Promise((over) => setTimeout(over, 300));
    assert.ok((await receiver.renewMessageLock(message)) > before);
    await receiver.completeMessage(message);
  },
  async schedule({ sender, receiver }) {
    const numbers = await sender.scheduleMessages([of("a"), of("b")], LATER());
    assert.equal(numbers.length, 2);
    await sender.cancelScheduledMessages(numbers[0]);
    assert.deepEqual((await receiver.peekMessages(9)).map((message) => message.body), ["b"]);
    await assert.rejects(sender.cancelScheduledMessages(numbers[0]), { code: "MessageNotFound" });
  },
  async peek({ sender, receiver }) {
    await sender.sendMessages(["a", "b", "c"].map((body) => of(body)));
    const [first] = await receiver.peekMessages(1);
    const rest = await receiver.peekMessages(9, { fromSequenceNumber: first.sequenceNumber.add(1) });
    assert.deepEqual([first, ...rest].map((message) => message.body), ["a", "b", "c"]);
  },
};

const client = new ServiceBusClient(connection);
const outcomes = await Promise.all(
  Object.entries(VERBS).map(async ([name, play], index) => {
    const queue = queues[index];
    const sender = client.createSender(queue);
    const receiver = client.createReceiver(queue);
    try {
      await play({ client, queue, sender, receiver });
      console.log(`ok ${name}`);
      return true;
    } catch (error) {
      console.log(`failed ${name}: ${error?.code ?? ""} ${error?.message ?? error}`);
      return false;
    }
  }),
);
await client.close();
process.exit(outcomes.every(Boolean) ? 0 : 1);
