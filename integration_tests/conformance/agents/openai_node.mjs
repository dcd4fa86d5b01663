// The official `openai` package of Node: whole and stream. Its own folder has no packages; NODE_PATH says where they are.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const { default: OpenAI } = createRequire(`${process.env.NODE_PATH}/`)("openai");
const [baseURL, apiKey, model, how] = process.argv.slice(2);
const task = JSON.parse(readFileSync(new URL("task.json", import.meta.url), "utf8"));
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const seen = { usage: [], tool_calls: [], answers: [] };
const messages = [{ role: "system", content: task.system }];

async function ask() {
  const { temperature, seed, max_tokens } = task;
  const tools = [{ type: "function", function: task.tool }];
  const body = { model, messages, tools, temperature, seed, max_tokens };
  if (how === "whole") return client.chat.completions.create(body);
  return client.chat.completions.stream({ ...body, stream_options: { include_usage: true } }).finalChatCompletion();
}

async function answer() {
  for (let calls = 0; calls < 4; calls++) {
    const { choices, usage } = await ask();
    seen.usage.push([usage.prompt_tokens, usage.completion_tokens]);
    const message = choices[0].message;
    messages.push(message);
    if (!message.tool_calls?.length) return message.content;
    for (const call of message.tool_calls) {
      const given = JSON.parse(call.function.arguments);
      seen.tool_calls.push([call.function.name, given]);
      messages.push({ role: "tool", tool_call_id: call.id, content: String(given.a + given.b) });
    }
  }
  throw new Error("the model calls its tool without end");
}

for (const question of task.questions) {
  messages.push({ role: "user", content: question });
  seen.answers.push(await answer());
}
console.log(JSON.stringify(seen));
