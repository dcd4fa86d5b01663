// An agent in JavaScript, with nothing but Node 18: one question, one reward.
//
//     ajet run http://127.0.0.1:8700 --cmd "node examples/node_agent/agent.js" --tasks examples/node_agent/tasks.jsonl
//
// The task is a line of JSON on standard input, where to call and with which key is in the environment, and the reward is
// the last line that is printed. A program that throws ends with another status than 0: a failed attempt, never a reward
// of 0. The official `openai` package reads the same variables: `new OpenAI()` needs no argument.
const { readFileSync } = require("node:fs");

const { OPENAI_BASE_URL, OPENAI_API_KEY, AJET_MODEL } = process.env;

async function ask(question) {
  const answer = await fetch(`${OPENAI_BASE_URL}/chat/completions`, {
    method: "POST",
    headers: { "Content-Type": "application/json", Authorization: `Bearer ${OPENAI_API_KEY}` },
    body: JSON.stringify({ model: AJET_MODEL, messages: [{ role: "user", content: question }], max_tokens: 16 }),
  });
  if (!answer.ok) throw new Error(`${answer.status}: ${await answer.text()}`);
  return (await answer.json()).choices[0].message.content ?? "";
}

async function main() {
  const { a, b } = JSON.parse(readFileSync(0, "utf8"));
  const text = await ask(`What is ${a} + ${b}?`);
  const numbers = text.match(/\d+/g) ?? [];
  const right = numbers.at(-1) === String(a + b);
  const reward = right ? 1 : numbers.length ? 0.1 : 0;
  console.log(JSON.stringify({ reward, metrics: { characters: text.length } }));
}

main();
