// Calls operations of the compiled client. Each line of standard input is a call, and each line of
// standard output is its result.
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const { calls } = await import(pathToFileURL(process.argv[2]).href);

for await (const line of createInterface({ input: process.stdin })) {
  const { operation, places, body } = JSON.parse(line);
  let result;
  try {
    result = await calls[operation](places, body);
  } catch (error) {
    result = { failure: String(error.stack ?? error) };
  }
  console.log(JSON.stringify(result));
}
